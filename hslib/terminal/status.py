"""How a run stands."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer


def status(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR")],
    watch: Annotated[
        bool, typer.Option("--watch", help="show it again and again, until the job ends")
    ] = False,
    seconds: Annotated[float, typer.Argument(metavar="SECONDS", help="how often")] = 2.0,
) -> int:
    """How a run's job and server stand.

    Exit code 1: rows failed or are unfinished, or the job or the server is dead.
    """
    from hslib.job import is_at_work, read_progress

    run_path = run_dir.absolute()
    while True:
        if watch and sys.stdout.isatty():
            print("\x1b[2J\x1b[H", end="")  # clears the terminal
        at_work = is_at_work(read_progress(run_path), time.time())  # before: it may end meanwhile
        code = _show_status(run_path)
        if not watch or not at_work:
            return code
        print(flush=True)
        time.sleep(seconds)


def _show_status(run_path: Path) -> int:
    """Print the job's last word, whether its process lives, and the server; the exit code."""
    from hslib.job import read_progress, watch
    from hslib.server import launch

    facts = launch.status(run_path)
    for name, value in facts.items():
        print(f"{name:>12}: {value}")
    state = read_progress(run_path)
    if state is None:
        print(f"{'job':>12}: none in this run")
        return int(facts["server"] != "running")
    now = time.time()
    for name, words in watch.facts(state, now):
        print(f"{name:>12}: {words}")
    unfinished = state.state != "running" and watch.unfinished_rows(state) > 0
    dead = watch.is_dead(state, now) or facts["server"] == "dead"
    return int(dead or unfinished or state.failed > 0)
