"""Real SGLang servers in a fifth of the time: a process that has imported SGLang, and forks.

Most of a tiny server's start is imports, in three processes. Here they are imported once: each
server is a fork of this process, and its scheduler and detokenizer are forks of it. Everything
else is SGLang's own: the command line, the plugins, the processes, the HTTP. How a server is
started for users (``hslib.server.launch.spawn``) has tests of its own.

Kernels and Ray's actors, which are processes of their own, get theirs through a socket, too.
"""

import atexit
import functools
import json
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from make.waits import wait_until

from hslib.cluster.messages import ReplicaFacts
from hslib.cluster.replica import Replica
from hslib.parameters import ServerParameters
from hslib.server import launch, preflight
from hslib.server.command_line import environment

_PROGRAM = Path(__file__).with_name("warm_process.py")
_TESTS = Path(__file__).parents[1]
_KERNELS = _TESTS.parent / "patches" / "cpu_kernels"
Spawn = Callable[[list[str], dict[str, str], Path], int]


def spawn_at(address: str) -> Spawn:
    """What stands in for ``hslib.server.launch.spawn``, in any process."""

    def spawn(arguments: list[str], variables: dict[str, str], log: Path) -> int:
        """Fork a server; returns its process id, the leader of a session of its own."""
        request = {"arguments": arguments, "variables": variables, "log": str(log)}
        with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rw") as stream:
            connection.connect(address)
            stream.write(json.dumps(request) + "\n")
            stream.flush()
            return int(stream.readline())

    return spawn


def use(address: str) -> None:
    """Have this process, which is not the tests' own, start its servers there."""
    launch.spawn = spawn_at(address)


@functools.cache
def of_this_run() -> "WarmServers":
    """Those of all tests, and of the notebooks that have no fixtures."""
    return WarmServers(Path(tempfile.mkdtemp(prefix="hslib-warm-")))


class WarmServers:
    """The forking process, once it is asked for; it ends with this one."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._process = folder, None  # type: Path, subprocess.Popen[bytes] | None
        atexit.register(shutil.rmtree, folder, ignore_errors=True)

    @property
    def address(self) -> str:
        """The socket at which it takes requests."""
        path = self._folder / "socket"
        if self._process is None:
            self._process = self._start(path)
            wait_until("the warm process", lambda: path.exists() or self._has_ended(), 600)
            assert path.exists(), (self._folder / "log").read_text()[-2000:]
        return str(path)

    def spawn(self, arguments: list[str], variables: dict[str, str], log: Path) -> int:
        return spawn_at(self.address)(arguments, variables, log)

    def for_kernels(self) -> dict[str, str]:
        """The environment in which notebooks' kernels start their servers so."""
        startup = self._folder / "ipython/profile_default/startup/warm.py"
        startup.parent.mkdir(parents=True, exist_ok=True)
        startup.write_text(
            f"import sys\nsys.path.append({str(_TESTS)!r})\n"
            f"from real import warm\nwarm.use({self.address!r})\ndel sys, warm\n"
        )
        return {"IPYTHONDIR": str(self._folder / "ipython")}

    def replica_class(self) -> type[Replica]:
        """A cluster's replica, whose server starts so."""
        address = self.address

        class WarmReplica(Replica):
            def start(self) -> ReplicaFacts:
                use(address)
                return super().start()

        return WarmReplica

    def _start(self, path: Path) -> "subprocess.Popen[bytes]":
        # what libraries read as they are loaded is any server's
        places = {"run_dir": str(self._folder / "run"), "dump_dir": str(self._folder / "dumps")}
        plan = preflight.require(ServerParameters(**places))
        with (self._folder / "log").open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-u", str(_PROGRAM), str(path)],
                env={**environment(plan), "PYTHONPATH": str(_KERNELS)},
                stdin=subprocess.PIPE,  # closed by the end of this process, however it comes
                stdout=log,
                stderr=log,
            )

    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None
