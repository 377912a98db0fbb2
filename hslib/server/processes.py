"""The processes of a server's group: find them, signal them, and never another process.

The kernel gives a process id away again when its process is gone. So a group is known by its
leader's id and by when that leader started.
"""

import contextlib
import os
import signal
from pathlib import Path
from typing import Protocol

import psutil

from hslib.errors import ServerError
from hslib.server import shared_memory

_STOP_TIMEOUT_S = 5.0  # a server that only prefills has nothing to save


class Group(Protocol):
    """A process group, by its leader's id (the group's id too) and :func:`process_mark`."""

    @property
    def pid(self) -> int: ...

    @property
    def process_mark(self) -> str: ...


def process_mark(pid: int) -> str:
    """``{boot id}:{start time}`` of a process; "" when there is none.

    The start time is field 22 of ``/proc/{pid}/stat``, in clock ticks since boot (proc(5)). Unlike
    ``psutil.Process.create_time`` it does not change when the system's clock is set.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{fields[19]}"


def is_of_this_boot(group: Group) -> bool:
    """Whether a group was started on this host, and not before it was booted."""
    return group.process_mark.partition(":")[0] == process_mark(os.getpid()).partition(":")[0]


def is_alive(group: Group) -> bool:
    """Whether the group's leader runs, and its id is not another process's by now."""
    if process_mark(group.pid) != group.process_mark:
        return False
    try:
        return bool(psutil.Process(group.pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def members(group: Group) -> list[psutil.Process]:
    """The group's live processes; children can outlive their leader."""
    mark = process_mark(group.pid)
    boot, _, started = group.process_mark.partition(":")
    if mark and mark != group.process_mark:
        return []  # an id is given away again only when its whole group has ended
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) != group.pid:
                continue
            its_boot, _, its_start = process_mark(process.pid).partition(":")
            if its_boot != boot or int(its_start) < int(started):
                continue  # of a group that had this id before
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess, ValueError):
            continue
    return found


def stop_group(group: Group, patience_s: float = _STOP_TIMEOUT_S) -> int:
    """End the group: SIGTERM, then SIGKILL; returns how many processes there were.

    Shared memory that was theirs alone is unlinked.

    Args:
        patience_s: seconds between the two.

    Raises:
        ServerError: some processes survive both.
    """
    found = members(group)
    shared = shared_memory.mapped_by(process.pid for process in found)
    for process in found:
        _signal(process, signal.SIGTERM)
    _, left = psutil.wait_procs(found, timeout=patience_s)
    left = [process for process in {*left, *members(group)} if process.is_running()]
    for process in left:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(left, timeout=_STOP_TIMEOUT_S)
    survivors = members(group)
    if survivors:
        raise ServerError(f"processes {[p.pid for p in survivors]} of the server do not end")
    shared_memory.remove(shared)
    return len(found)


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
