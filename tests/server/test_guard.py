"""What a process works on is cleaned when it is killed, and by nobody while it lives."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
from make import groups
from make.progress import progress
from make.waits import wait_until

from hslib.job.progress import read_progress, write_progress
from hslib.server import launch
from hslib.server.processes import members, stop_group

PARENT = """
import sys, time
from pathlib import Path
from hslib.server import launch
from hslib.server.guard import Guard
guard = Guard(Path(sys.argv[1]))
if sys.argv[2] == "watch":
    guard.watch_over(launch.read_state(Path(sys.argv[1])))
if sys.argv[2] == "dismiss":
    guard.dismiss()
print("guarded", flush=True)
time.sleep(1000)
"""


def start_parent(run_path: Path, what: str = "stay") -> "subprocess.Popen[str]":
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(run_path), what],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "guarded\n"
    return parent


def guards_of(run_path: Path) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if str(run_path) in (process.info["cmdline"] or ()) and PARENT not in process.cmdline()
    ]


def test_a_killed_parent_takes_its_run_s_server_with_it(tmp_path: Path) -> None:
    write_progress(tmp_path, progress())
    state, parent = groups.start(tmp_path), start_parent(tmp_path)
    parent.kill()
    parent.wait()
    wait_until("the end of the server", lambda: not members(state))
    wait_until("the end of the guard", lambda: not guards_of(tmp_path))
    assert launch.read_state(tmp_path) is None
    ended = read_progress(tmp_path)
    assert ended is not None
    assert ended.state == "interrupted"
    assert "cleaned: stopped the server" in (tmp_path / "extraction.log").read_text()


def test_the_guard_is_nobodys_child_and_the_server_stays_while_the_parent_lives(
    tmp_path: Path,
) -> None:
    state, parent = groups.start(tmp_path), start_parent(tmp_path)
    try:
        (guard,) = guards_of(tmp_path)
        assert guard not in [child.pid for child in psutil.Process(parent.pid).children(True)]
        os.kill(guard, signal.SIGTERM)  # as Slurm does with all of a step
        os.kill(guard, signal.SIGINT)
        time.sleep(0.5)
        assert guards_of(tmp_path) == [guard]
        assert len(members(state)) >= 2
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
    wait_until("the end of the server", lambda: not members(state))


def test_a_guard_that_was_dismissed_leaves_everything(tmp_path: Path) -> None:
    state, parent = groups.start(tmp_path), start_parent(tmp_path, "dismiss")
    try:
        wait_until("the end of the guard", lambda: not guards_of(tmp_path))
    finally:
        parent.kill()
        parent.wait()
    time.sleep(1.0)
    assert len(members(state)) >= 2
    stop_group(state)


def test_a_guarded_server_ends_though_its_runs_folder_is_gone(tmp_path: Path) -> None:
    """The user starts afresh with rm -rf; so it is where a run can't be locked."""
    run = tmp_path / "run"
    run.mkdir()
    state, parent = groups.start(run), start_parent(run, "watch")
    shutil.rmtree(run)
    parent.kill()
    parent.wait()
    wait_until("the end of the server", lambda: not members(state))


def test_the_end_of_a_server_forgets_no_later_one(tmp_path: Path) -> None:
    """server.json is another's by now: notebook 02 has started one in between."""
    first = groups.start(tmp_path)
    later = first.model_copy(update={"pid": os.getpid(), "process_mark": "another"})
    launch.state_path(tmp_path).write_text(later.model_dump_json())
    assert launch.end(tmp_path, first) >= 2
    assert launch.read_state(tmp_path) == later
