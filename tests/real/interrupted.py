"""Jobs that are interrupted as people and schedulers do it, and what is left of them then."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from make.rows import random_sample, write_rows
from make.waits import wait_until
from real.running import NOTEBOOK

from hslib.job import read_progress, watch
from hslib.parameters import ExtractionParameters
from hslib.server import launch, processes, shared_memory
from hslib.store import Store, find_store

_PROGRAM = """
import os, sys
sys.path.append(sys.argv[2])
exec(os.environ["HS_STARTUP"])
from hslib import extract
from hslib.parameters import ExtractionParameters
parameters = ExtractionParameters.model_validate_json(sys.argv[1])
servers = extract.open_servers(parameters)
result = extract.run(extract.prepare(parameters, servers), servers)
servers.close()
result.require_whole()
"""
_TESTS = Path(__file__).parents[1]
FAKE = "from fakes import server_process; server_process.use()"


def warm_at(address: str) -> str:
    """The startup of a program whose servers are forked from a warm process."""
    return f"from real import warm; warm.use({address!r})"


@dataclass
class Interrupted:
    """A job of one run that starts its own server, and is interrupted again and again.

    Args:
        variables: added to its environment: which server it starts, how slow that is.
    """

    folder: Path
    model: Path
    variables: dict[str, str]
    num_rows: int = 300
    committed: dict[int, str] = field(default_factory=dict)
    over_s: list[float] = field(default_factory=list)  # from each interrupt to its last process

    def __post_init__(self) -> None:
        samples = [random_sample(i, 5 + i % 40, seed=71) for i in range(self.num_rows)]
        self.parameters = ExtractionParameters.from_values(
            {
                "run_dir": str(self.folder / "run"),
                "model_path": str(self.model),
                "layers": "1,3,5",
                "dataset_path": str(write_rows(self.folder / "rows.jsonl", samples)),
                "concurrency": 4,
                "samples_per_request": 1,
            }
        )

    @property
    def run_path(self) -> Path:
        return self.parameters.run_path

    def start(self, way: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", _PROGRAM, self.parameters.model_dump_json(), str(_TESTS)]
        if way in ("papermill", "slurm"):
            command = [str(Path(sys.executable).with_name("papermill")), str(NOTEBOOK)]
            command += [str(self.folder / "out.ipynb"), "--cwd", str(self.folder)]
            for name, value in self.parameters.model_dump(exclude_defaults=True).items():
                command += ["-p", name, str(value)]
        with (self.folder / "said.txt").open("ab") as said:
            return subprocess.Popen(
                command,
                stdout=said,
                stderr=said,
                start_new_session=True,
                env={**os.environ, **self.variables},
            )

    def interrupt(self, way: str, after_s: float, of_extraction: bool) -> str:
        """Start it, interrupt it some time after its start or its first row, and look around.

        Returns:
            How ``status`` says that it stands; "" when it had not begun to extract.
        """
        job = self.start(way)
        if of_extraction:
            before = len(self.stored())
            wait_until("a row", lambda: len(self.stored()) > before or job.poll() is not None)
        time.sleep(after_s)
        its = RunProcesses(self.run_path, job.pid)
        began_at = time.monotonic()
        way_of[way](job, its)
        job.wait(60)
        its.wait_until_gone()
        self.over_s.append(time.monotonic() - began_at)
        assert not its.shared_memory_left(), "segments or semaphores stayed"
        assert not self.parameters.dump_paths[0].exists(), "the dump directory stayed"
        self._require_nothing_lost()
        state = read_progress(self.run_path)
        return watch.facts(state, time.time())[0][1] if state is not None else ""

    def finish(self) -> None:
        """Run it undisturbed: everything is there then, and nothing was done twice."""
        job = self.start("terminal")
        assert job.wait(300) == 0, (self.folder / "said.txt").read_text()[-2000:]
        self._require_nothing_lost()
        assert len(self.stored()) == self.num_rows
        RunProcesses(self.run_path, job.pid).wait_until_gone()
        assert not self.parameters.dump_paths[0].exists()

    def stored(self) -> dict[int, str]:
        """Index -> entry of each committed row."""
        with contextlib.suppress(FileNotFoundError):
            store = find_store(self.parameters.store_path)
            if store is not None:
                return {index: entry.entry for index, entry in store.entries.items()}
        return {}

    def _require_nothing_lost(self) -> None:
        stored = self.stored()
        assert self.committed.items() <= stored.items(), "a committed row went, or was done twice"
        assert not stored or Store(self.parameters.store_path).verify(deep=True).clean
        self.committed = stored


class RunProcesses:
    """Those of a run, as they are at an instant: job, kernel, server, guards."""

    def __init__(self, run_path: Path, pid: int) -> None:
        self._run_path, self._server = run_path, launch.read_state(run_path)
        found = {process.pid: process for process in self._named()}
        with contextlib.suppress(psutil.NoSuchProcess):
            job = psutil.Process(pid)
            found |= {process.pid: process for process in (job, *job.children(recursive=True))}
        if self._server is not None:
            found |= {process.pid: process for process in processes.members(self._server)}
        self.all = list(found.values())
        self._mapped = shared_memory.mapped_by(found)

    def wait_until_gone(self) -> None:
        wait_until("the end of all its processes", lambda: not self._alive(), within_s=60)

    def _alive(self) -> list[psutil.Process]:
        known = [process for process in self.all if _is_alive(process)]
        server = launch.read_state(self._run_path)  # it may have come up since
        return [*known, *self._named(), *(processes.members(server) if server else ())]

    def _named(self) -> list[psutil.Process]:
        """Processes with the run in their command line: guards, and what they become."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and str(self._run_path) in process.cmdline():
                    found.append(process)
        return found

    def shared_memory_left(self) -> list[str]:
        return sorted(name for name in self._mapped if Path("/dev/shm", name).exists())


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _signal(number: signal.Signals) -> Callable[["subprocess.Popen[bytes]", RunProcesses], None]:
    return lambda job, _its: job.send_signal(number)


def _end_step(_job: "subprocess.Popen[bytes]", its: RunProcesses) -> None:
    """SIGTERM to all, the server and the guards too, as Slurm does with a job's step."""
    for process in its.all:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)


way_of: dict[str, Callable[["subprocess.Popen[bytes]", RunProcesses], None]] = {
    "papermill": _signal(signal.SIGINT),
    "terminal": _signal(signal.SIGINT),
    "sigterm": _signal(signal.SIGTERM),
    "slurm": _end_step,
    "killed": _signal(signal.SIGKILL),
}


def instants(count: int, seed: int, start_s: float) -> list[tuple[float, bool]]:
    """Random instants: every third one in the start, the others while rows are extracted."""
    rng = random.Random(seed)
    return [
        (rng.uniform(0.0, 1.5), True) if n % 3 else (rng.uniform(0.0, start_s), False)
        for n in range(1, count + 1)
    ]
