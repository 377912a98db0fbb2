"""The end of a test's server."""

import shutil

from hslib.server import launch as server
from hslib.server import processes


def end_server(state: server.ServerState) -> None:
    """Kill it at once, and remove what it has dumped; SGLang takes 5 s to heed a SIGTERM."""
    processes.stop_group(state, patience_s=0)
    shutil.rmtree(state.dump_dir, ignore_errors=True)
