"""The traceback of the cell that failed last, in a file: the kit's errors are shown without one."""

import traceback
from pathlib import Path
from typing import Any

TRACEBACK_FILE = "traceback.log"


class TracebackFile:
    """Called by IPython after each cell."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, result: Any) -> None:
        error = result.error_in_exec
        if isinstance(error, Exception):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text("".join(traceback.format_exception(error)))


def keep_tracebacks(run_path: Path) -> None:
    """From now on in this kernel; outside of one there is nothing to do."""
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None:
        return
    for known in [c for c in shell.events.callbacks["post_run_cell"] if _is_ours(c)]:
        shell.events.unregister("post_run_cell", known)
    shell.events.register("post_run_cell", TracebackFile(run_path / TRACEBACK_FILE))


def _is_ours(callback: Any) -> bool:
    return isinstance(callback, TracebackFile)
