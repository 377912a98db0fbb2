"""Cleans a run when the process that works on it is gone, even if that was killed.

A server has a process group of its own and outlives the process that started it. A job's server
must not, or it keeps its GPUs; and dumps in tmpfs must not, or they keep its memory. The guard is a
small process that waits for the end of a pipe which only the job's process holds open, and then
becomes ``python -m hslib clean RUN_DIR``. It is told which server it guards, so that this one ends
even where the run's folder is gone, or can't be locked. It is not the job's child, and heeds no
SIGTERM: killing the job with all its children, or a Slurm step, does not kill the guard first.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from hslib.server.processes import Group, stop_group

# -I -S: 10 ms and 8 MB; hslib is only imported when there is something to clean
_WAIT = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork():  # only now: the job goes on when this one has exited
    os._exit(0)
told = sys.stdin.read()
if not told.endswith("."):
    os.environ["HSLIB_GUARDED"] = told
    os.execv(sys.executable, [sys.executable, "-m", "hslib", "clean", sys.argv[1]])
"""
_PACKAGES = str(Path(__file__).parents[2])


class _Guarded(NamedTuple):
    pid: int
    process_mark: str


def end_guarded() -> int:
    """In a guard that cleans: stop the server that it was told of; how many processes it had."""
    pid, _, mark = os.environ.pop("HSLIB_GUARDED", "").partition(" ")
    return stop_group(_Guarded(int(pid), mark)) if mark else 0


class Guard:
    """Guards a run from now on, as a context manager until its end."""

    def __init__(self, run_path: Path) -> None:
        path = os.pathsep.join(filter(None, (_PACKAGES, os.environ.get("PYTHONPATH"))))
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WAIT, str(run_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        guard.wait()  # it forks and exits; the guard is its child, and not this process's
        self._pipe = guard.stdin
        self.server = ""  # the guarded server's process_mark

    def watch_over(self, group: Group) -> None:
        """From now on this server ends with this process, too."""
        self.server = group.process_mark
        self._write(f"{group.pid} {group.process_mark}".encode())

    def dismiss(self) -> None:
        """This process has cleaned the run itself."""
        self._write(b".")
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def _write(self, data: bytes) -> None:
        if self._pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # somebody has killed the guard
                self._pipe.write(data)
                self._pipe.flush()

    def __enter__(self) -> "Guard":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.dismiss()
