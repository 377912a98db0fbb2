"""Full and read-only file systems: small real tmpfs mounts (root), loudly skipped elsewhere."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.server import SAMPLES, FakeServer, assert_store_is_right
from hs_dump.capture import Capture
from hs_dump.writer import Budget, Writer
from make.jobs import run
from make.passes import META, Recorded, forward, received, server_error
from make.passes import run as run_pass
from make.rows import random_sample, write_rows

from hslib.errors import HslibError, JobError, StoreError
from hslib.parameters import ExtractionParameters
from hslib.server.dumps import request_id
from hslib.store import Store

Mount = Callable[..., Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mount a tmpfs of some kilobytes; skips where that is not allowed."""
    mounted: list[Path] = []

    def make(name: str, kilobytes: int) -> Path:
        path = tmp_path / name
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"FULL-DISK CASES NOT RUN: can't mount here ({done.stderr.strip()})")
        mounted.append(path)
        return path

    yield make
    for path in mounted:
        subprocess.run(["umount", "-l", path], check=False)


def wanted(fake: FakeServer, tmp_path: Path, store: Path) -> ExtractionParameters:
    values: dict[str, Any] = {
        "run_dir": str(tmp_path / "run"),
        "store_dir": str(store),
        "dataset_path": str(write_rows(tmp_path / "rows.jsonl", SAMPLES)),
        "model_path": str(fake.model),
        "layers": "1,3,5",
        "server_url": fake.url,
        "dump_dir": str(fake.dumps),
        "concurrency": 4,
    }
    return ExtractionParameters.from_values(values)


def test_a_disk_too_small_for_the_job_is_refused_before_the_first_request(
    fake: FakeServer, tmp_path: Path, mount: Mount
) -> None:
    parameters = wanted(fake, tmp_path, mount("disk", 96) / "store")
    with pytest.raises(JobError, match="the store would grow by") as caught:
        run(parameters)
    assert not [rid for rid in fake.requests if not rid.startswith("hs-999999999-")]
    proposed = re.search(r"limit = (\d+) rows", caught.value.fix)
    assert proposed
    assert run(parameters.model_copy(update={"limit": int(proposed[1])})).is_whole


@pytest.mark.parametrize("encoding", ["plain", "lossless"])
def test_a_disk_that_fills_during_the_job_stops_it_and_loses_nothing(
    fake: FakeServer, tmp_path: Path, mount: Mount, encoding: str
) -> None:
    disk = mount("disk", 300)
    parameters = wanted(fake, tmp_path, disk / "store").model_copy(update={"encoding": encoding})
    ballast = disk / "ballast"

    def fill_up(rid: str, *_: Any) -> None:
        if rid.startswith("hs-6-") and not ballast.exists():
            free = os.statvfs(disk)
            ballast.write_bytes(b"x" * max(0, free.f_bavail * free.f_frsize - 8192))

    fake.misbehave = fill_up
    with pytest.raises(StoreError, match="No space left") as caught:
        run(parameters)
    assert caught.value.fields["path"].startswith(str(disk))
    assert caught.value.fields["file_system"] == f"tmpfs, mounted at {disk}"
    assert "run again to resume: what was stored before is whole" in caught.value.fix
    stored = len(Store(parameters.store_path))
    assert stored < len(SAMPLES)
    assert Store(parameters.store_path).verify(deep=True).clean
    ballast.unlink()
    fake.misbehave = lambda *_: None
    assert run(parameters).totals.already_done == stored
    assert_store_is_right(parameters.store_path)


def test_a_disk_that_turns_read_only_stops_the_job_and_loses_nothing(
    fake: FakeServer, tmp_path: Path, mount: Mount
) -> None:
    disk = mount("disk", 2000)
    parameters = wanted(fake, tmp_path, disk / "store")

    def freeze(rid: str, *_: Any) -> None:
        if rid.startswith("hs-6-"):
            subprocess.run(["mount", "-o", "remount,ro", disk], capture_output=True, check=False)

    fake.misbehave = freeze
    parameters = parameters.model_copy(update={"concurrency": 1, "samples_per_request": 1})
    # open files keep a tmpfs writable, so only what is opened later is refused, if at all
    try:
        run(parameters)
    except (OSError, HslibError):
        assert len(Store(parameters.store_path)) < len(SAMPLES)
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    fake.misbehave = lambda *_: None
    assert run(parameters).is_whole
    assert_store_is_right(parameters.store_path)


def test_an_output_directory_that_vanishes_stops_the_job(fake: FakeServer, tmp_path: Path) -> None:
    import shutil

    parameters = wanted(fake, tmp_path, tmp_path / "store")
    gone: list[bool] = []

    def vanish(rid: str, *_: Any) -> None:
        if rid.startswith("hs-6-") and not gone:
            gone.append(True)
            shutil.rmtree(parameters.store_path)

    fake.misbehave = vanish
    with pytest.raises((OSError, HslibError)):
        run(parameters.model_copy(update={"concurrency": 1, "samples_per_request": 1}))
    fake.misbehave = lambda *_: None
    assert run(parameters).is_whole
    assert_store_is_right(parameters.store_path)


def test_a_full_tmpfs_is_an_error_of_the_request_and_not_the_end_of_the_server(
    mount: Mount,
) -> None:
    """The plugin's own writer on a tmpfs smaller than its budget says."""
    root = mount("shm", 64)
    writer = Writer(root, 3, 16, Budget(root, 1 << 30, 1.0), META)
    capture = Capture(writer, Recorded(), dump_all=False)  # type: ignore[arg-type]
    large, small = random_sample(0, 800), random_sample(1, 20)
    run_pass(capture, *forward((request_id(large, 1), large, 0, 800)))
    assert "No space left" in server_error(root, large)
    run_pass(capture, *forward((request_id(small, 1), small, 0, 20)))
    received(root, small)
