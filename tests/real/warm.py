"""Real SGLang servers in a fifth of the time: a process that has imported SGLang, and forks.

Most of a tiny server's start is imports, in three processes. Here they are imported once: each
server is a fork of this process, and its scheduler and detokenizer are forks of it. Everything
else is SGLang's own: the command line, the plugins, the processes, the HTTP. How a server is
started for users (``hslib.server.launch.spawn``) has tests of its own.

As a program: reads ``{"arguments", "variables", "log"}`` as JSON lines, answers with process ids.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

_KERNELS = Path(__file__).parents[2] / "patches" / "cpu_kernels"


class WarmServers:
    """The forking process; :meth:`spawn` stands in for ``hslib.server.launch.spawn``."""

    def __init__(self, log: Path) -> None:
        self._log, self._process = log, None  # type: Path, subprocess.Popen[str] | None

    def spawn(self, arguments: list[str], variables: dict[str, str], log: Path) -> int:
        """Fork a server; returns its process id, the leader of a session of its own."""
        if self._process is None:
            self._process = self._start(variables)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"arguments": arguments, "variables": variables, "log": str(log)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the warm process ended: {self._log.read_text()[-2000:]}"
        return int(answer)

    def _start(self, variables: dict[str, str]) -> "subprocess.Popen[str]":
        # what libraries read as they are loaded is a server's own; but not what this one server
        # has on its path, such as a plugin that plants a fault
        base = {**variables, "PYTHONPATH": str(_KERNELS)}
        with self._log.open("w") as errors:
            return subprocess.Popen(
                [sys.executable, "-u", __file__],
                env=base,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def close(self) -> None:
        """End the forking process; servers are stopped by those who started them."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _serve(request: dict[str, Any]) -> None:
    """In the fork: what ``python -m sglang.launch_server`` does."""
    os.setsid()
    output = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(request["variables"])
    path = request["variables"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [folder for folder in path if folder and folder not in sys.path]
    arguments = request["arguments"]
    arguments = arguments[arguments.index("sglang.launch_server") + 1 :]

    from sglang import launch_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.utils import kill_process_tree

    try:
        load_plugins()  # which may put others in place of the two functions below
        launch_server.run_server(launch_server.prepare_server_args(arguments))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def _main() -> None:
    import multiprocessing

    import sglang.launch_server
    import sglang.srt.entrypoints.http_server
    import sglang.srt.managers.data_parallel_controller
    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler
    import sglang.srt.models.registry  # noqa: F401

    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.set_start_method = lambda *_args, **_more: None  # type: ignore[assignment]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # servers that end are not waited for
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                _serve(request)
            except BaseException:
                import traceback

                traceback.print_exc()
            os._exit(1)
        print(child, flush=True)


if __name__ == "__main__":
    _main()
