"""What a killed job left is removed, and nothing else is: live jobs', other runs', other users'."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from make import groups
from make.dumps import write_dump
from make.progress import progress
from make.rows import random_sample
from make.stores import store_samples

from hslib.errors import JobError, ParameterError
from hslib.job import RunRecord, leftovers, read_progress
from hslib.job.progress import write_progress
from hslib.parameters import dump_path
from hslib.server import launch, run_lock, shared_memory
from hslib.server.processes import is_alive, members, stop_group

SHARED = Path("/dev/shm")


@pytest.fixture
def run_path(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "run"
    path.mkdir()
    yield path
    state = launch.read_state(path)
    if state is not None:
        stop_group(state, patience_s=0)


def dump_into(root: Path, count: int = 2) -> None:
    root.mkdir(exist_ok=True)
    for index in range(count):
        sample = random_sample(index, 4)
        write_dump(root, f"hs-{index}-4-{sample.digest[:16]}-1", sample)


def killed_job(run_path: Path) -> launch.ServerState:
    """A run as a job leaves it that is killed with its guard: a server, dumps, and 'running'."""
    write_progress(run_path, progress(dump_dirs={str(dump_path("", run_path)): "hs-"}))
    dump_into(dump_path("", run_path))
    return groups.start(run_path)


def test_a_killed_job_leaves_no_process_no_shared_memory_and_no_dump(run_path: Path) -> None:
    state = killed_job(run_path)
    mapped = shared_memory.mapped_by(process.pid for process in members(state))
    assert {state.shared_memory[0]} < mapped, "a semaphore is there, too"
    (dump_path("", run_path) / ".tmp-999999999-hs-7").mkdir()
    said = "\n".join(leftovers.clean(run_path))
    assert "stopped the server" in said
    assert f"removed 2 dumps in {dump_path('', run_path)}" in said
    assert "60 rows are left" in said
    assert not members(state)
    assert not [name for name in mapped if (SHARED / name).exists()]
    assert not dump_path("", run_path).exists()
    ended = read_progress(run_path)
    assert ended is not None
    assert ended.state == "interrupted"
    assert leftovers.clean(run_path) == [], "a second call has nothing to do"


def test_shared_memory_of_a_server_that_was_killed_with_all_its_processes_is_known(
    run_path: Path,
) -> None:
    state = killed_job(run_path)
    for process in members(state):
        process.kill()
    assert (SHARED / state.shared_memory[0]).exists()
    leftovers.clean(run_path)
    assert not (SHARED / state.shared_memory[0]).exists()


def test_a_live_jobs_things_stay_and_the_command_says_whose_they_are(run_path: Path) -> None:
    state = killed_job(run_path)
    command = [sys.executable, "-m", "hslib", "clean", str(run_path)]
    with run_lock(run_path):
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        with pytest.raises(JobError, match="in use by this process"):
            leftovers.clean(run_path)
    assert refused.returncode == 1
    assert f"run {run_path} is in use by another job" in refused.stderr
    assert str(os.getpid()) in refused.stderr
    assert is_alive(state)
    assert len(list(dump_path("", run_path).glob("hs-*"))) == 2
    cleaned = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "stopped the server" in cleaned.stdout
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stdout == "nothing to remove\n"


def test_another_runs_things_stay(run_path: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = killed_job(tmp_path / "other")
    killed_job(run_path)
    leftovers.clean(run_path)
    assert is_alive(other)
    assert (SHARED / other.shared_memory[0]).exists()
    assert len(list(dump_path("", tmp_path / "other").glob("hs-*"))) == 2
    leftovers.clean(tmp_path / "other")


def test_a_server_that_no_job_started_stays_and_only_the_jobs_dumps_go(
    run_path: Path, tmp_path: Path
) -> None:
    dumps = tmp_path / "dumps"
    dump_into(dumps)
    (dumps / "mine.txt").write_text("a person's")
    write_dump(dumps, "req_1", random_sample(3, 4))
    state = groups.start(run_path, for_job=False, dump_dir=str(dumps))
    write_progress(run_path, progress(dump_dirs={str(dumps): "hs-"}))
    said = leftovers.clean(run_path)
    assert f"removed 2 dumps in {dumps}" in said
    assert is_alive(state)
    assert sorted(path.name for path in dumps.iterdir() if path.name[0] != ".") == [
        "mine.txt",
        "req_1",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_another_users_dumps_stay(run_path: Path, tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    dump_into(dumps)
    os.chown(dumps, 12345, -1)
    write_progress(run_path, progress(state="finished", dump_dirs={str(dumps): "hs-"}))
    assert leftovers.clean(run_path) == []
    assert len(list(dumps.glob("hs-*"))) == 2


def test_shared_memory_that_another_process_has_or_another_user_owns_stays(tmp_path: Path) -> None:
    state = groups.start(tmp_path)
    (segment,) = state.shared_memory
    assert shared_memory.remove([segment]) == [], "the group has it"
    assert stop_group(state) >= 2
    assert not (SHARED / segment).exists()
    assert shared_memory.remove(["../tmp", ".", segment]) == []


def test_the_replicas_of_a_cluster_are_cleaned_with_their_run(run_path: Path) -> None:
    replica = run_path / "replicas/00000"
    replica.mkdir(parents=True)
    state = killed_job(replica)
    assert "stopped the server" in "\n".join(leftovers.clean(run_path))
    assert not members(state)
    assert not dump_path("", replica).exists()


def test_a_run_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="no such run"):
        leftovers.clean(tmp_path / "nowhere")


def test_what_was_stored_after_the_last_word_is_counted(run_path: Path, tmp_path: Path) -> None:
    """A killed job's progress.json is up to half a second old."""
    samples = [random_sample(index, 5) for index in range(4)]
    store_samples(run_path / "store", tmp_path / "dumps", samples)
    word = {"asked": 10, "ok": 2, "stored": 2, "already_done": 0, "failed": 0, "rejected": 0}
    write_progress(run_path, progress(**word))
    record = RunRecord(
        parameters={},
        model_path="m",
        model_class="M",
        dataset="d",
        store=str(run_path / "store"),
        states="1",
        hardware="cpu",
        versions={},
    )
    (run_path / "run.json").write_text(record.model_dump_json())
    assert "6 rows are left" in "\n".join(leftovers.clean(run_path))
