"""Real processes that die, and what people see of a job meanwhile: long tests."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import psutil
import pytest
from make.waits import wait_until
from real.running import NOTEBOOK, journal_lines, parameters_for, start_job, stored
from real.served import assert_is_the_models
from real.servers import end_server
from real.warm import WarmServers

from hslib import extract
from hslib.job.progress import read_progress
from hslib.parameters import ServerParameters
from hslib.server import launch as server
from hslib.server import processes
from hslib.server.endpoints import open_endpoints
from hslib.store import Store

pytestmark = pytest.mark.slow


# --- the server dies ----------------------------------------------------------------------


@pytest.fixture
def mortal(
    model_of: Callable[[str], Path], tmp_path: Path, warm: WarmServers
) -> Iterator["Mortal"]:
    found = Mortal(model_of("llama"), tmp_path, warm)
    yield found
    end_server(found.state)


class Mortal:
    """A real server at a fixed port that is killed, and started again with other layers."""

    def __init__(self, model: Path, folder: Path, warm: WarmServers) -> None:
        self._warm = warm
        self._values: dict[str, object] = {
            "run_dir": str(folder / "server"),
            "model_path": str(model),
        }
        self.start("1,3,5")

    def start(self, layers: str) -> None:
        parameters = ServerParameters.from_values(self._values | {"layers": layers})
        with mock.patch.object(server, "spawn", self._warm.spawn):
            self.state = server.start(parameters)
        port = int(self.state.url.rsplit(":", 1)[1])
        self._values |= {"port": port, "dump_dir": self.state.dump_dir}

    def kill(self) -> None:
        for process in processes.members(self.state):
            process.kill()
        wait_until("the server's end", self._has_left_its_port)  # threads may outlive a leader

    def _has_left_its_port(self) -> bool:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return tried.connect_ex(("127.0.0.1", int(str(self._values["port"])))) != 0


def test_a_killed_server_is_waited_for_and_one_with_other_layers_is_refused(
    mortal: Mortal, model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    wanted = parameters_for(mortal.state, model_of("llama"), tmp_path, 3000)
    job = start_job(wanted)
    wait_until("some rows", lambda: stored(wanted.run_path) > 100)
    mortal.kill()
    before = stored(wanted.run_path)
    mortal.start("1,3,5")
    wait_until("more rows", lambda: stored(wanted.run_path) > before + 100)
    assert job.poll() is None
    mortal.kill()
    mortal.start("1,3,4")
    assert job.wait(60) != 0
    assert job.stderr is not None
    said = job.stderr.read().decode()
    assert "another server came back: boundaries differ" in said, said[-3000:]
    state = read_progress(wanted.run_path)
    assert state is not None
    assert (state.state, state.failed) == ("failed", 0)
    assert len(Store(wanted.store_path)) == state.ok
    assert_is_the_models(wanted, every=97)


# --- two jobs -----------------------------------------------------------------------------


def test_a_second_job_is_refused_by_name_and_the_first_goes_on(
    llama_server: server.ServerState, model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    wanted = parameters_for(llama_server, model_of("llama"), tmp_path, 1200)
    first = start_job(wanted)
    wait_until("some rows", lambda: stored(wanted.run_path) > 20)
    same_store = wanted.model_copy(
        update={"run_dir": str(tmp_path / "a"), "store_dir": str(wanted.store_path)}
    )
    same_dumps = wanted.model_copy(update={"run_dir": str(tmp_path / "b")})
    for second, what in ((same_store, "shard 0 of 1 of"), (same_dumps, "dump directory")):
        job = start_job(second)
        assert job.wait(60) != 0
        assert job.stderr is not None
        said = job.stderr.read().decode()
        assert re.search(rf"{what}.* is in use by another job", said)
        assert f'"pid": {first.pid}' in said
    assert first.wait(120) == 0
    assert len(Store(wanted.store_path)) == 1200
    assert_is_the_models(wanted, every=301)


# --- what people see ----------------------------------------------------------------------


def test_a_papermill_job_tells_the_truth_while_it_runs_and_when_its_kernel_is_killed(
    llama_server: server.ServerState, model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    wanted = parameters_for(llama_server, model_of("llama"), tmp_path, 2000)
    command = [str(Path(sys.executable).with_name("papermill")), str(NOTEBOOK)]
    command += [str(tmp_path / "out.ipynb"), "--cwd", str(tmp_path)]
    for name, value in wanted.model_dump(exclude_defaults=True).items():
        command += ["-p", name, str(value)]
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run = wanted.run_path
    wait_until("the job", lambda: stored(run) > 0)
    committed = journal_lines(wanted)
    time.sleep(5)  # what is committed now is told by then, and no more than is
    told = [stored(run), rows_in_log(run), rows_in_status(run)]
    assert all(committed <= count <= journal_lines(wanted) for count in told), told
    assert "job: running" in status(run)
    kernel = read_progress(run)
    assert kernel is not None
    assert kernel.pid in {child.pid for child in psutil.Process(job.pid).children(recursive=True)}
    time.sleep(random.Random(7).uniform(0.0, 1.0))
    os.kill(kernel.pid, signal.SIGKILL)
    left = "job: interrupted: run again to resume, "  # its guard says so
    wait_until("the word of the guard", lambda: left in status(run), within_s=20)
    assert f"process {kernel.pid} was killed" in status(run)
    assert job.wait(60) != 0, "papermill must not call that a success"
    done = journal_lines(wanted)
    again = subprocess.run(command, capture_output=True, check=False)
    assert again.returncode == 0, again.stderr[-2000:]
    assert "job: finished" in status(run)
    metrics = json.loads((run / "metrics.json").read_text())
    assert (metrics["already_done"], metrics["ok"]) == (done, 2000 - done)
    assert_is_the_models(wanted, every=299)


def rows_in_log(run: Path) -> int:
    lines = (run / "extraction.log").read_text().splitlines()
    return next(int(n) for line in reversed(lines) for n in re.findall(r"\] (\d+) extracted", line))


def rows_in_status(run: Path) -> int:
    found = re.search(r"(\d+) extracted, ", status(run))
    assert found
    return int(found[1])


def status(run: Path) -> str:
    command = [sys.executable, "-m", "hslib", "status", str(run)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


# --- memory -------------------------------------------------------------------------------


def test_memory_does_not_grow_with_the_rows(
    llama_server: server.ServerState, model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """A short soak on a warm server, whose pools have been touched: nothing takes more and more."""
    wanted = parameters_for(
        llama_server, model_of("llama"), tmp_path, 2800, concurrency=16, samples_per_request=8
    )
    warm = wanted.model_copy(update={"limit": 1400, "run_dir": str(tmp_path / "warm")})
    fleet = open_endpoints(warm)
    extract.run(extract.prepare(warm, fleet), fleet)
    job = start_job(wanted)
    wait_until("the first tenth", lambda: stored(wanted.run_path) > 400)
    before = memory_mb(job.pid), server_memory_mb(llama_server)
    wait_until("the last rows", lambda: stored(wanted.run_path) > 2500)
    after = memory_mb(job.pid), server_memory_mb(llama_server)
    assert job.wait(120) == 0
    assert after[0] - before[0] < 40, (before, after)  # 2,000 journal entries' worth is 1 MB
    assert after[1] - before[1] < 60, (before, after)


def memory_mb(pid: int) -> float:
    return psutil.Process(pid).memory_info().rss / 1e6


def server_memory_mb(state: server.ServerState) -> float:
    return sum(process.memory_info().rss for process in processes.members(state)) / 1e6
