"""The end of a test's server."""

import contextlib
import shutil
from pathlib import Path

import psutil

from hslib.server import launch as server
from hslib.server import processes


def end_server(state: server.ServerState) -> None:
    """Kill it at once, and remove what it has dumped; SGLang takes 5 s to heed a SIGTERM."""
    processes.stop_group(state, patience_s=0)
    shutil.rmtree(state.dump_dir, ignore_errors=True)


def writers_of(log: Path) -> list[int]:
    """The processes that say what they have to say there: those of a server that runs."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/fd/1").readlink() == log:
                found.append(pid)
    return found
