"""How a job elsewhere stands: from its progress.json alone."""

import os
from pathlib import Path

import pytest
from make.progress import progress as state

from hslib.job import watch
from hslib.job.progress import Progress, free_bytes


def test_a_view_tells_progress_failures_by_reason_and_disk_left() -> None:
    found = watch.facts(state(), now=1001.0)
    assert found == [
        ("job", "running"),
        (
            "progress",
            "40 of 100 rows, 0.30 samples/s, 90 tokens/s, 5.0 MB/s, 500 MB written",
        ),
        ("rows", "100 asked for, 5 already done, 30 extracted, 3 failed, 2 rejected"),
        ("time", "2 min elapsed, about 10 min left"),
        ("failed", "2 x rows"),
        ("failed", "1 x checksum"),
        ("disk left", "3.0 GB for dumps"),
        ("disk left", "36.0 GB for the store, enough for 2.0 h at this pace"),
    ]


def test_a_job_that_writes_nothing_any_more_is_dead_and_not_at_work() -> None:
    assert watch.is_at_work(state(), 1003.0)
    assert not state().is_dead(1003.0)
    assert state().is_dead(1005.0), "within five seconds"
    assert not watch.is_at_work(state(), 1005.0)
    left = "run again to resume, 60 rows are left"
    assert watch.facts(state(), 1100.0)[0] == (
        "job",
        f"DEAD (process 7 has written nothing for 100 s): {left}",
    )
    assert not state(state="finished").is_dead(1100.0)
    assert not watch.is_at_work(None, 0.0)


def test_an_interrupted_job_says_how_to_go_on_and_how_much_is_left() -> None:
    found = dict(watch.facts(state(state="interrupted"), now=1100.0))
    assert found["job"] == "interrupted: run again to resume, 60 rows are left"


def test_a_job_tells_what_is_free_where_it_writes(tmp_path: Path) -> None:
    disks = {"the store": tmp_path, "gone": tmp_path / "nowhere"}
    with Progress(tmp_path, state(), 1, disks, show=lambda _state: None) as progress:
        found = progress.snapshot().free_bytes
    space = os.statvfs(tmp_path)
    assert found["the store"] == pytest.approx(space.f_bavail * space.f_frsize, rel=0.05)
    assert "gone" not in found
    assert free_bytes({}) == {}
