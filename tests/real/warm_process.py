"""The program that has imported SGLang, and forks servers; see ``warm.py``.

At the socket that its argument names it reads ``{"arguments", "variables", "log"}`` as JSON, a line
per connection, and answers with a process id. It ends when its standard input does.
"""

import json
import os
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any


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

    import setproctitle
    import sglang.launch_server
    import sglang.srt.entrypoints.http_server
    import sglang.srt.managers.data_parallel_controller
    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler
    import sglang.srt.models.registry  # noqa: F401

    setproctitle.getproctitle()  # it looks for its place once, and not in a changed environment
    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.set_start_method = lambda *_args, **_more: None  # type: ignore[assignment]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # servers that end are not waited for
    with socket.socket(socket.AF_UNIX) as listening:
        unready = Path(f"{sys.argv[1]}.new")
        listening.bind(str(unready))
        listening.listen()
        unready.rename(sys.argv[1])
        while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
            connection, _ = listening.accept()
            with connection, connection.makefile("rw") as stream:
                request = json.loads(stream.readline())
                child = os.fork()
                if child == 0:
                    os.close(listening.fileno())
                    os.close(connection.fileno())
                    _serve_and_exit(request)
                stream.write(f"{child}\n")


def _serve_and_exit(request: dict[str, Any]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        _serve(request)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


if __name__ == "__main__":
    _main()
