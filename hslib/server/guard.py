"""Ends a server when the process that it was started for is gone, however that ended.

A server has a process group of its own and outlives who started it; one that is started for a
job must not, or its GPUs are lost to the next. The guard is no child of that process, so that
whoever kills its children leaves it alone, and sees its end by a pipe that closes then.
"""

import os
import select
import subprocess
import sys

from hslib.server.processes import Group, is_alive, stop_group

_LOOK_EVERY_S = 2.0


class _Server:
    def __init__(self, pid: str, process_mark: str) -> None:
        self.pid, self.process_mark = int(pid), process_mark


def watch_over(group: Group) -> None:
    """Let the group end with this process; ends by itself when the group's leader does."""
    command = [sys.executable, "-m", "hslib.server.guard", str(group.pid), group.process_mark]
    guard = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )
    guard.wait()  # it has left a child of its own behind
    _pipes.append(guard.stdin)


_pipes: list[object] = []  # open as long as this process lives


def main() -> None:
    server = _Server(*sys.argv[1:])
    if os.fork():
        os._exit(0)
    while not select.select([sys.stdin], [], [], _LOOK_EVERY_S)[0]:
        if not is_alive(server):
            break  # what is left of its group is nobody's
    stop_group(server)


if __name__ == "__main__":
    main()
