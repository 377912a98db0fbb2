"""How a run stands."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hslib.job import ProgressState
    from hslib.server.launch import ServerState


def status(
    run_dir: Annotated[
        Path,
        typer.Argument(metavar="RUN_DIR", help="of one job, or the folder of its shards' runs"),
    ],
    watch: Annotated[
        bool, typer.Option("--watch", help="show it again and again, until the job ends")
    ] = False,
    seconds: Annotated[float, typer.Argument(metavar="SECONDS", help="how often")] = 2.0,
) -> int:
    """How a run's job and server stand.

    With --watch a run that has not begun is waited for. Exit code 1: rows failed or are unfinished,
    the job or the server is dead, or the folder is missing.
    """
    try:
        if watch:
            return _watch(run_dir.absolute(), seconds)
        _require(run_dir)
        return _show(run_dir.absolute())
    except KeyboardInterrupt:
        print()
        return 130  # what a shell calls an interrupt
    except BrokenPipeError:  # the reader has read enough, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _require(run_dir: Path) -> None:
    from hslib.errors import ParameterError

    if not run_dir.is_dir():
        raise ParameterError(
            "the run's folder is missing",
            path=str(run_dir),
            fix="check the path; --watch waits for a run that has not begun",
        )


def _watch(run_path: Path, seconds: float) -> int:
    """Show it until the job has ended; before it begins, what is waited for."""
    from hslib.job import find_runs, watch

    has_begun = False
    while True:
        if sys.stdout.isatty():
            print("\x1b[2J\x1b[H", end="")  # clears the terminal
        # before it is shown: it may end meanwhile
        runs = find_runs(run_path)
        at_work = any(watch.is_busy(run, time.time()) for run in runs or [run_path])
        has_begun = has_begun or at_work or bool(runs)
        code = _show(run_path)
        if has_begun and not at_work:
            return code
        if not has_begun:
            print(f"{'waiting':>12}: for a job to begin in {run_path}; Ctrl-C ends the waiting")
        print(flush=True)
        time.sleep(seconds)


def _show(run_path: Path) -> int:
    """Print how a run stands, or each shard's; the exit code."""
    from hslib.job import find_runs, missing_shards

    runs = find_runs(run_path)
    if len(runs) <= 1:
        return _show_run(runs[0] if runs else run_path)
    codes = []
    for run in runs:
        print(f"--- {run.name}")
        codes.append(_show_run(run))
    if missing := missing_shards(runs):
        print(f"--- {missing} more shards have not begun, or ended before their first row")
    return max(*codes, int(missing > 0))


def _server(
    facts: dict[str, str], server: "ServerState | None", job: "ProgressState | None"
) -> dict[str, str]:
    """The server's facts; one that a job started ends with it, which is no death. Pure."""
    has_ended = (
        server is not None
        and job is not None
        and server.for_job
        and job.state in ("finished", "interrupted")
        and job.updated_at > server.launched_at
    )
    if has_ended and facts["server"] == "dead":
        return facts | {"server": "stopped, with its job"}
    if has_ended and facts.get("answers", "").startswith("not yet"):
        return facts | {"server": "stopping, with its job", "answers": "not any more"}
    return facts


def _show_run(run_path: Path) -> int:
    """Print the job's last word, whether its process lives, and the server; the exit code."""
    from hslib.job import read_progress, watch
    from hslib.server import launch

    state, now = read_progress(run_path), time.time()
    facts = _server(launch.status(run_path), launch.read_state(run_path), state)
    for name, value in facts.items():
        print(f"{name:>12}: {value}")
    since = watch.starting_since(run_path, state)
    if since is not None:
        print(f"{'job':>12}: {watch.starting_words(since, now)}")
        if state is not None:
            print(f"{'before':>12}: {watch.facts(state, now)[0][1]}")
        return 0
    if state is None:
        print(f"{'job':>12}: none in this run")
        return int(facts["server"] != "running")
    for name, words in watch.facts(state, now):
        print(f"{name:>12}: {words}")
    unfinished = state.state != "running" and state.unfinished_rows > 0
    dead = state.is_dead(now) or facts["server"] == "dead"
    return int(dead or unfinished or state.failed > 0)
