"""Interrupts of jobs with a real server, one of each way; a kernel's own; a kill and a start."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes import server_process
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from make.waits import wait_until
from real.interrupted import FAKE, Interrupted, RunProcesses, warm_at, way_of
from real.warm import WarmServers

from hslib.job import read_progress, watch
from hslib.server import launch
from hslib.server.processes import is_alive
from hslib.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interruptible")]


@pytest.mark.parametrize("way", way_of)
def test_an_interrupt_leaves_nothing_behind_and_the_job_resumes(
    way: str, warm: WarmServers, model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    variables = {"HS_STARTUP": warm_at(warm.address), **warm.for_kernels()}
    job = Interrupted(tmp_path, model_of("llama"), variables, num_rows=300)
    said = job.interrupt(way, 0.4, of_extraction=True)
    left = job.num_rows - len(job.committed)
    assert said == f"interrupted: run again to resume, {left:,} rows are left"
    assert left
    job.finish()


def test_a_job_that_is_started_at_once_after_a_kill_waits_for_what_is_left_and_resumes(
    tmp_path: Path, model_of: Callable[[str], Path]
) -> None:
    fake = {"HS_STARTUP": FAKE, server_process.ANSWER_S: "0.05"}
    job = Interrupted(tmp_path, model_of("llama"), fake, num_rows=100)
    killed = job.start("terminal")
    wait_until("some rows", lambda: len(job.stored()) > 20)
    killed.kill()
    job.finish()
    assert len(Store(job.parameters.store_path)) == 100
    killed.wait()


# --- a kernel, as in JupyterLab -----------------------------------------------------------

OPEN = """
from hslib import extract
from hslib.parameters import ExtractionParameters
p = ExtractionParameters.model_validate_json({parameters!r})
servers = extract.open_servers(p)
"""
RUN = "result = extract.run(extract.prepare(p, servers), servers)"


@pytest.fixture
def kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    for name, value in server_process.for_kernels(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(server_process.ANSWER_S, "0.05")
    manager = KernelManager()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(60)
    yield manager, client
    client.stop_channels()
    if manager.is_alive():
        manager.shutdown_kernel(now=True)


def test_an_interrupted_kernel_goes_on_with_its_server_and_one_that_is_shut_down_leaves_nothing(
    kernel: tuple[KernelManager, BlockingKernelClient],
    model_of: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    manager, client = kernel
    fake = {"HS_STARTUP": FAKE, server_process.ANSWER_S: "0"}
    job = Interrupted(tmp_path, model_of("llama"), fake, num_rows=600)
    parameters = job.parameters.model_dump_json()
    opened = client.execute_interactive(OPEN.format(parameters=parameters), timeout=120)
    assert opened["content"]["status"] == "ok"
    for _ in range(2):
        before = len(job.stored())
        client.execute(RUN)
        wait_until("some rows", lambda: len(job.stored()) > before + 10)  # noqa: B023
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=60)
        assert reply["content"]["status"] == "ok", reply["content"]
        state = read_progress(job.run_path)
        assert state is not None
        left = state.unfinished_rows
        assert left == 600 - len(job.stored())
        words = watch.facts(state, time.time())[0]
        assert words == ("job", f"interrupted: run again to resume, {left:,} rows are left")
        (dumps,) = job.parameters.dump_paths
        assert not list(dumps.glob("hs-*")), "dumps stayed in tmpfs"
        server = launch.read_state(job.run_path)
        assert server is not None
        assert is_alive(server), "the kernel lives, and so does its server"
    client.execute(RUN)
    wait_until("some rows", lambda: len(job.stored()) > before + 10)
    its = RunProcesses(job.run_path, manager.provisioner.pid)  # type: ignore[union-attr]
    manager.shutdown_kernel()
    its.wait_until_gone()
    assert not its.shared_memory_left()
    assert not dumps.exists()
    ended = read_progress(job.run_path)
    assert ended is not None
    assert ended.state == "interrupted"
    job.finish()
