"""Clear and scan by directory: what a late dump is taken for."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.server import NO_DUMP, SAMPLES, FakeServer, assert_store_is_right
from make.jobs import run, wanted

from hslib.parameters import ExtractionParameters
from hslib.store import Store


@pytest.fixture
def parameters(fake: FakeServer, tmp_path: Path) -> Callable[..., ExtractionParameters]:
    port = int(fake.url.rsplit(":", 1)[1])
    fake.stop()
    fake.start(port, dump_all=True)

    def make(**values: Any) -> ExtractionParameters:
        own = {
            "scan_scope": "directory",
            "dump_timeout_s": 1.0,
        }
        return wanted(fake, tmp_path, SAMPLES, **{**own, **values})

    return make


def test_the_request_after_one_that_was_given_up_waits_for_its_late_dump(
    fake: FakeServer, parameters: Any
) -> None:
    given_up: list[tuple[str, np.ndarray]] = []

    def come_late() -> None:
        while given_up:
            fake.dump(*given_up.pop())

    def misbehave(rid: str, ids: np.ndarray, _attempt: int) -> int | None:
        come_late()  # at the latest beside the next one's, which is then taken for two of one
        if len(ids) == SAMPLES[3].num_tokens and not is_late:
            is_late.append(True)
            given_up.append((rid, ids))
            threading.Timer(1.4, come_late).start()
            return NO_DUMP
        return None

    is_late: list[bool] = []
    fake.misbehave = misbehave
    wanted = parameters()
    assert run(wanted).is_whole
    assert_store_is_right(wanted.store_path)
    store = Store(wanted.store_path)
    assert [index for index, entry in store.entries.items() if entry.attempts > 1] == [3]
    log = (wanted.run_path / "extraction.log").read_text()
    assert log.count(" try ") == 1, "no other row met the late dump"


def test_a_dump_that_never_comes_is_asked_for_again(fake: FakeServer, parameters: Any) -> None:
    missed: list[str] = []

    def misbehave(rid: str, ids: np.ndarray, _attempt: int) -> int | None:
        if len(ids) == SAMPLES[3].num_tokens and not missed:
            missed.append(rid)
            return NO_DUMP
        return None

    fake.misbehave = misbehave
    wanted = parameters(dump_timeout_s=0.3)
    assert run(wanted).is_whole
    assert missed
    assert_store_is_right(wanted.store_path)
