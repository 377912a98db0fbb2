"""What a starting server does, read from SGLang's log."""

import re

FIRST = "importing SGLang"
# the line that stands last in the log says what the server does now
_BEGINNINGS = (
    ("Init parallel begin", "starting its processes"),
    ("Load weight begin", "loading weights"),
    ("Load weight end", "allocating memory"),
    ("CUDA graph begin", "recording CUDA graphs"),
    ("Engine startup timings", "starting its HTTP server"),
    ("Uvicorn running", "warming up"),
)
_SHARE = re.compile(r"(\d+)%[ |]")  # of tqdm's bars over shards of weights


def phase_of(log: str) -> str:
    """The phase, with a share where there is one: "loading weights, 40 %". Pure."""
    at, phase = max((log.rfind(line), phase) for line, phase in _BEGINNINGS)
    if at < 0:
        return FIRST
    shares = _SHARE.findall(log, at) if phase == "loading weights" else []
    return f"{phase}, {shares[-1]} %" if shares else phase
