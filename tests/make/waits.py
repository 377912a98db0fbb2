"""Waiting for what another process or thread does."""

import time
from collections.abc import Callable


def wait_until(what: str, holds: Callable[[], bool], within_s: float = 120.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.02)
