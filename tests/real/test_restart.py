"""A job's own server dies: it is started again, and a row that kills it is found. Real servers."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from make.rows import random_sample, write_rows
from real.warm import WarmServers

from hslib import extract
from hslib.dataset import Sample
from hslib.errors import JobError
from hslib.parameters import ExtractionParameters
from hslib.server import launch, processes
from hslib.server.endpoint import MOST_RESTARTS
from hslib.server.endpoints import open_endpoints
from hslib.store import Store

pytestmark = pytest.mark.slow

DEADLY = 509  # a token; other rows have none above 500
PLANTED = Path(__file__).parent / "planted"


@pytest.fixture(autouse=True)
def _warm(warm: WarmServers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "spawn", warm.spawn)
    monkeypatch.setattr(processes.stop_group, "__defaults__", (0.0,))  # SGLang would take 5 s


@pytest.fixture
def deadly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers die of a row with that token twice running."""
    monkeypatch.setenv("HS_DEADLY", str(DEADLY))
    path = os.pathsep.join((str(PLANTED), os.environ.get("PYTHONPATH", "")))
    monkeypatch.setenv("PYTHONPATH", path)


def rows(count: int, deadly: tuple[int, ...] = ()) -> list[Sample]:
    """Rows of which the ``deadly`` ones end with the deadly token twice."""
    found = [random_sample(i, 6 + i % 40, vocab_size=500, seed=5) for i in range(count)]
    for index in deadly:
        row = found[index]
        ids = np.append(row.input_ids[:-2], [DEADLY, DEADLY]).astype(np.int32)
        found[index] = Sample(index, row.id, ids, row.loss_mask)
    return found


def job(samples: list[Sample], model: Path, folder: Path, **values: object) -> ExtractionParameters:
    return ExtractionParameters.from_values(
        {
            "run_dir": str(folder / "run"),
            "model_path": str(model),
            "layers": "1,3,5",
            "dataset_path": str(write_rows(folder / "rows.jsonl", samples)),
            "concurrency": 4,
            "samples_per_request": 2,
            **values,
        }
    )


def run(parameters: ExtractionParameters) -> extract.Result:
    endpoints = open_endpoints(parameters)
    try:
        return extract.run(extract.prepare(parameters, endpoints), endpoints)
    finally:
        endpoints.close()


def kill_when_stored(parameters: ExtractionParameters, count: int) -> threading.Thread:
    """Kill every process of the run's server in the middle of the job."""

    def kill() -> None:
        journal = parameters.store_path / "journal.jsonl"  # type: ignore[operator]
        while not journal.exists() or journal.read_bytes().count(b"\n") < count:
            time.sleep(0.02)
        state = launch.read_state(parameters.run_path)
        assert state is not None
        for process in processes.members(state):
            process.kill()

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    return thread


def log_of(parameters: ExtractionParameters) -> str:
    return (parameters.run_path / "extraction.log").read_text()


def test_a_killed_server_of_the_job_is_started_again_and_nothing_is_lost(
    model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    wanted = job(rows(600), model_of("llama"), tmp_path)
    killed = kill_when_stored(wanted, 100)
    result = run(wanted)
    assert not killed.is_alive()
    assert result.is_whole
    assert result.totals.ok == 600
    assert Store(wanted.store_path).verify(deep=True).clean
    assert "waiting for the server" in log_of(wanted)
    assert "is back" in log_of(wanted)
    assert (wanted.run_path / "server.1.log").stat().st_size > 0, "the log of the one that died"
    assert (wanted.run_path / "server.log").stat().st_size > 0


@pytest.mark.usefixtures("deadly")
def test_a_row_that_kills_its_server_is_found_and_takes_no_other_with_it(
    model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    wanted = job(rows(60, deadly=(7,)), model_of("llama"), tmp_path)
    result = run(wanted)
    assert list(result.failed) == [7]
    assert result.totals.ok == 59
    assert "does not answer" in result.failed[7]
    assert len(list(wanted.run_path.glob("server.*.log"))) == wanted.max_attempts


@pytest.mark.usefixtures("deadly")
def test_a_server_that_dies_time_and_again_ends_the_job(
    model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    everything = tuple(range(12))
    wanted = job(rows(12, deadly=everything), model_of("llama"), tmp_path, max_attempts=3)
    with pytest.raises(
        JobError, match=f"died {MOST_RESTARTS + 1} times without a sample in between"
    ):
        run(wanted)
    assert len(Store(wanted.store_path)) == 0
    assert len(list(wanted.run_path.glob("server.*.log"))) == MOST_RESTARTS
