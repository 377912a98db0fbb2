"""What a starting server does, read from logs as SGLang 0.5.23 wrote them."""

import pytest

from hslib.server.phases import phase_of

# lines of a real start, in order, and what the server does after each
LOG = (
    ("", "importing SGLang"),
    ("Cuda graph is disabled because of using torch native attention backend", "importing SGLang"),
    ("[2026-12-01 08:39:44] Init parallel begin.", "starting its processes"),
    ("[2026-12-01 08:39:44] Init parallel ends. elapsed=0.05 s", "starting its processes"),
    ("[2026-12-01 08:39:44] Load weight begin. avail mem=19.63 GB", "loading weights"),
    (
        "Multi-thread loading shards:   0% Completed | 0/5 [00:00<?, ?it/s]\r"
        "Multi-thread loading shards:  40% Completed | 2/5 [00:00<00:00, 4.66it/s]",
        "loading weights, 40 %",
    ),
    (
        "Loading safetensors checkpoint shards:  60%|######    | 3/5 [00:02<00:00, 1.0it/s]",
        "loading weights, 60 %",
    ),
    ("Load weight end. elapsed=0.08 s, type=LlamaForCausalLM", "allocating memory"),
    ("KV Cache is allocated. dtype: torch.bfloat16, #tokens: 65536", "allocating memory"),
    ("Memory pool end. avail mem=19.22 GB", "allocating memory"),
    ("Capture decode CUDA graph begin. backend=full", "recording CUDA graphs"),
    (" 12%|#  | 1/8 [00:01<00:07]", "recording CUDA graphs"),
    ("Engine startup timings (s): load_weight=0.08", "starting its HTTP server"),
    ("INFO:     Uvicorn running on http://127.0.0.1:53749", "warming up"),
    ('INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 503 Service Unavailable', "warming up"),
)


@pytest.mark.parametrize("count", range(1, len(LOG) + 1))
def test_the_phase_is_that_of_the_last_line_that_begins_one(count: int) -> None:
    log = "\n".join(line for line, _ in LOG[:count])
    assert phase_of(log) == LOG[count - 1][1]
