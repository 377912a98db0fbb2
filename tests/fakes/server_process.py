"""The hand-made server as a process in place of SGLang, for jobs that start their own.

It ends as SGLang does: a while after SIGTERM it kills its children, Python's resource tracker among
them, and leaves its semaphores and segments in /dev/shm.
"""

import argparse
import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import psutil

_TESTS = Path(__file__).parents[1]
ANSWER_S = "HS_FAKE_ANSWER_S"  # the variable that says how long an answer takes
_HEEDS_AFTER_S = 0.5


def use() -> None:
    """Have this process start its servers so."""
    from hslib.server import launch

    started = launch.spawn

    def spawn(arguments: list[str], variables: dict[str, str], log: Path) -> int:
        path = [str(_TESTS), str(_TESTS.parent / "patches/hs_dump"), str(_TESTS.parent)]
        variables = {**variables, "PYTHONPATH": os.pathsep.join(path)}
        return started([sys.executable, __file__, *arguments], variables, log)

    launch.spawn = spawn


def for_kernels(folder: Path) -> dict[str, str]:
    """The environment in which notebooks' kernels do."""
    startup = folder / "ipython/profile_default/startup/fake.py"
    startup.parent.mkdir(parents=True, exist_ok=True)
    startup.write_text(
        f"import sys\nsys.path.append({str(_TESTS)!r})\n"
        "from fakes import server_process\nserver_process.use()\ndel sys, server_process\n"
    )
    return {"IPYTHONDIR": str(folder / "ipython")}


def _end(*_signal: Any) -> None:
    time.sleep(_HEEDS_AFTER_S)
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(0)


def main() -> None:
    from fakes.server import FakeServer

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--model-path", type=Path)
    wanted, _ = parser.parse_known_args()
    spawning = multiprocessing.get_context("spawn")
    kept = [spawning.Lock(), shared_memory.SharedMemory(create=True, size=4096)]
    signal.signal(signal.SIGTERM, _end)
    fake = FakeServer(Path(os.environ["SGLANG_HS_DUMP_DIR"]), wanted.model_path, wanted.port)
    answer_s = float(os.environ.get(ANSWER_S, "0"))
    fake.misbehave = lambda *_: time.sleep(answer_s)
    threading.Event().wait()
    del kept


if __name__ == "__main__":
    main()
