"""Two jobs on one run or one store: the second is told so before a server starts."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from make.rows import random_sample, write_rows

from hslib import extract
from hslib.errors import JobError
from hslib.parameters import ExtractionParameters
from hslib.server import launch, run_lock

HOLD = """
import sys
from hslib.parameters import ExtractionParameters
from hslib.server import run_lock, store_lock
parameters = ExtractionParameters.model_validate_json(sys.argv[1])
held = run_lock(parameters.run_path), store_lock(parameters)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def parameters(
    tmp_path: Path, model_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> ExtractionParameters:
    def no_server(*_: Any) -> int:
        raise AssertionError("a server was started")

    monkeypatch.setattr(launch, "spawn", no_server)
    return ExtractionParameters.from_values(
        {
            "run_dir": str(tmp_path / "run"),
            "store_dir": str(tmp_path / "store"),
            "model_path": str(model_of("llama")),
            "layers": "1,3,5",
            "dataset_path": str(write_rows(tmp_path / "rows.jsonl", [random_sample(0, 9)])),
        }
    )


@pytest.fixture
def first(parameters: ExtractionParameters) -> Iterator["subprocess.Popen[str]"]:
    """Another process that has opened the servers of a job."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, parameters.model_dump_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_job_on_a_run_is_refused(
    first: "subprocess.Popen[str]", parameters: ExtractionParameters
) -> None:
    with pytest.raises(JobError, match=r"run .* is in use by another job") as caught:
        extract.open_servers(parameters)
    assert f'"pid": {first.pid}' in caught.value.fields["owner"]


@pytest.mark.usefixtures("first")
def test_a_second_job_on_a_store_is_refused_and_one_on_another_shard_is_not(
    parameters: ExtractionParameters, tmp_path: Path
) -> None:
    other = parameters.model_copy(update={"run_dir": str(tmp_path / "other")})
    with pytest.raises(JobError, match=r"shard 0 of 1 of the store .* is in use by another job"):
        extract.open_servers(other)
    shard = other.model_copy(update={"num_shards": 2, "shard_index": 1})
    with pytest.raises(AssertionError, match="a server was started"):
        extract.open_servers(shard)


def test_a_run_is_free_once_its_job_is_gone(
    first: "subprocess.Popen[str]", parameters: ExtractionParameters
) -> None:
    first.kill()  # it may still be ending: that is waited for
    with pytest.raises(AssertionError, match="a server was started") as caught:
        extract.open_servers(parameters)
    assert not is_refused(parameters.run_path), "servers that did not open hold nothing"
    assert caught.tb is not None  # as a notebook keeps it


def test_a_notebook_may_open_its_servers_twice_and_a_closed_run_is_free(tmp_path: Path) -> None:
    one, other = run_lock(tmp_path), run_lock(tmp_path)
    one.release()
    assert is_refused(tmp_path), "the second still holds it"
    other.release()
    assert not is_refused(tmp_path)


def test_a_run_whose_folder_was_removed_is_locked_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    stale = run_lock(run)
    shutil.rmtree(run)
    assert not is_refused(run), "the old lock keeps nobody out"
    fresh = run_lock(run)
    assert is_refused(run)
    fresh.release()
    stale.release()


def test_servers_that_are_closed_give_the_run_free_though_an_error_still_refers_to_others(
    tmp_path: Path,
) -> None:
    in_a_traceback, mine = run_lock(tmp_path), run_lock(tmp_path)
    mine.end()
    assert not is_refused(tmp_path)
    in_a_traceback.release()


TRY = """
import sys
from pathlib import Path
from hslib.server import run_lock
run_lock(Path(sys.argv[1]))
"""


def is_refused(run_path: Path) -> bool:
    command = [sys.executable, "-c", TRY, str(run_path)]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode != 0
