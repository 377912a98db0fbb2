"""A server that was started for a job ends with whoever started it, and with nobody else."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil

from hslib.server.processes import members, process_mark

# A parent with a "server" of two processes in a group of its own, as SGLang's children are.
PARENT = """
import subprocess, sys, time
from types import SimpleNamespace
from hslib.server.guard import watch_over
from hslib.server.processes import process_mark
child = subprocess.Popen(["sh", "-c", "sleep 1000 & sleep 1000"], start_new_session=True)
time.sleep(0.3)
watch_over(SimpleNamespace(pid=child.pid, process_mark=process_mark(child.pid)))
print(child.pid, flush=True)
time.sleep(1000)
"""


def wait_until(is_so: Callable[[], bool], timeout_s: float = 15.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def start_parent() -> tuple["subprocess.Popen[str]", SimpleNamespace]:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    return parent, SimpleNamespace(pid=pid, process_mark=process_mark(pid))


def guards_of(pid: int) -> list[int]:
    return [
        int(path.name)
        for path in Path("/proc").glob("[0-9]*")
        if f"guard.main()\0{pid}\0".encode() in read(path / "cmdline")
    ]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_killed_parent_takes_the_whole_group_with_it() -> None:
    parent, group = start_parent()
    assert len(members(group)) >= 2
    parent.kill()
    parent.wait()
    assert wait_until(lambda: not members(group))
    assert wait_until(lambda: not guards_of(group.pid))


def test_the_guard_is_nobodys_child_and_the_group_stays_while_the_parent_lives() -> None:
    parent, group = start_parent()
    try:
        guards = guards_of(group.pid)
        assert len(guards) == 1
        assert guards[0] not in [p.pid for p in psutil.Process(parent.pid).children(True)]
        time.sleep(2.5)  # longer than the guard's look
        assert len(members(group)) >= 2
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
    assert wait_until(lambda: not members(group))


def test_a_leader_that_died_by_itself_leaves_no_child_and_no_guard() -> None:
    parent, group = start_parent()
    try:
        os.kill(group.pid, signal.SIGKILL)
        assert wait_until(lambda: not members(group))
        assert wait_until(lambda: not guards_of(group.pid))
    finally:
        parent.kill()
        parent.wait()
