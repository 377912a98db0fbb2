"""Stops a job's server when the job's process is gone, even if that was killed.

A server has a process group of its own and outlives the process that started it. A job's server
must not, or it keeps its GPUs. The guard is a process of its own that waits for the end of a pipe
which only the job's process holds open. It is not the job's child: killing the job with all its
children does not kill the guard.
"""

import os
import select
import subprocess
import sys
from typing import NamedTuple

from hslib.server.processes import Group, is_alive, stop_group

_LOOK_EVERY_S = 2.0


class _Server(NamedTuple):
    pid: int
    process_mark: str


def watch_over(group: Group) -> None:
    """Stop the group when this process ends; the guard itself ends with the group's leader."""
    # not -m: hslib.server imports this module, which runpy warns of
    start = "from hslib.server import guard; guard.main()"
    command = [sys.executable, "-c", start, str(group.pid), group.process_mark]
    guard = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )
    guard.wait()  # it forks and exits; the guard is its child, and not this process's
    _pipes.append(guard.stdin)


_pipes: list[object] = []  # open as long as this process lives


def main() -> None:
    pid, process_mark = sys.argv[1:]
    server = _Server(int(pid), process_mark)
    if os.fork():
        os._exit(0)
    while not select.select([sys.stdin], [], [], _LOOK_EVERY_S)[0]:
        if not is_alive(server):
            break  # its children may outlive it: they are stopped below
    stop_group(server)
