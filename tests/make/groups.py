"""Process groups in place of servers: each with a child, a segment and a semaphore."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from hslib.parameters import dump_path
from hslib.server import launch
from hslib.server.processes import process_mark

_GROUP = """
import multiprocessing, subprocess, sys, time
from multiprocessing import shared_memory
kept = multiprocessing.get_context("spawn").Lock(), shared_memory.SharedMemory(create=True, size=64)
child = subprocess.Popen(["sleep", "1000"])
print(kept[1].name, flush=True)
time.sleep(1000)
"""


def start(run_path: Path, **values: Any) -> launch.ServerState:
    """Start one, as the server that a job of this run started, and record it in ``server.json``."""
    group = subprocess.Popen(
        [sys.executable, "-c", _GROUP], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert group.stdout is not None
    segment = group.stdout.readline().strip()
    facts: dict[str, Any] = {
        "url": "http://127.0.0.1:1",
        "pid": group.pid,
        "process_mark": process_mark(group.pid),
        "launched_at": 0.0,
        "model_path": "m",
        "boundaries": (1, 3, 5),
        "dump_dir": str(dump_path("", run_path)),
        "log": str(run_path / "server.log"),
        "budget_bytes": 1,
        "for_job": True,
        "shared_memory": (segment,),
    }
    state = launch.ServerState.model_validate({**facts, **values})
    run_path.mkdir(exist_ok=True)
    launch.state_path(run_path).write_text(state.model_dump_json())
    return state
