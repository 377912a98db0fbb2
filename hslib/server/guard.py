"""Cleans a run when the process that works on it is gone, even if that was killed.

A server has a process group of its own and outlives the process that started it. A job's server
must not, or it keeps its GPUs; and dumps in tmpfs must not, or they keep its memory. The guard is a
small process that waits for the end of a pipe which only the job's process holds open, and then
becomes ``python -m hslib clean RUN_DIR``. It is not the job's child, and heeds no SIGTERM: killing
the job with all its children, or a whole Slurm step, does not kill the guard first.
"""

import os
import subprocess
import sys
from pathlib import Path

# -I -S: 10 ms and 8 MB; hslib is only imported when there is something to clean
_WAIT = """
import os, signal, sys
if os.fork():
    os._exit(0)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if not sys.stdin.buffer.read(1):
    os.execv(sys.executable, [sys.executable, "-m", "hslib", "clean", sys.argv[1]])
"""
_PACKAGES = str(Path(__file__).parents[2])


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

    def dismiss(self) -> None:
        """This process has cleaned the run itself."""
        if self._pipe is not None:
            try:
                self._pipe.write(b".")
                self._pipe.close()
            except BrokenPipeError:  # somebody has killed the guard
                pass
            self._pipe = None

    def __enter__(self) -> "Guard":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.dismiss()
