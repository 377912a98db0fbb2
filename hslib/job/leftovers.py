"""What a killed job leaves, and its removal: the server, its shared memory, dumps in tmpfs.

What is removed is named by the run's own files, and is taken only under the run's lock; but a guard
ends the server that it guards whatever the folder holds.
"""

import os
import time
from pathlib import Path

import psutil

from hslib.errors import HslibError, JobError, ParameterError
from hslib.files import Lock
from hslib.job.progress import (
    ProgressState,
    close_log,
    open_log,
    read_progress,
    write_progress,
)
from hslib.job.record import read_record
from hslib.parameters import dump_path
from hslib.server import DumpDir, launch, run_lock
from hslib.server.guard import end_guarded
from hslib.server.processes import is_of_this_boot, members
from hslib.store import Store

_LATE_S = 10.0  # how long a server that goes on may still dump what the killed job had asked for
_QUIET_S = 2.0  # without another dump


def clean(run_path: Path) -> list[str]:
    """Remove what a killed job of this run left; returns a sentence for each thing.

    A server that the job did not start goes on; so does every other run's, and every other user's.
    Of a job on a cluster, the replicas on this host are cleaned, too.

    Raises:
        ParameterError: there is no such run.
        JobError: a job is at work there.
    """
    if count := end_guarded():
        return [f"stopped the server that was guarded ({count} processes)", *_clean(run_path)]
    return _clean(run_path)


def _clean(run_path: Path) -> list[str]:
    if not run_path.is_dir():
        raise ParameterError("there is no such run", path=str(run_path))
    with run_lock(run_path, role="clean"):
        was_running = (state := read_progress(run_path)) is not None and state.state == "running"
        done = [*_end_server(run_path), *_clear_dumps(run_path, was_running), *_end_job(run_path)]
        if done:
            log = open_log(run_path / "extraction.log")
            for sentence in done:
                log.warning("cleaned: %s", sentence)
            close_log(log)
    for replica in sorted(run_path.glob("replicas/*")):
        done += _clean(replica)
    return done


def _end_job(run_path: Path) -> list[str]:
    """Say in ``progress.json`` that the job is over."""
    state = read_progress(run_path)
    if state is None or state.state != "running":
        return []
    message = f"process {state.pid} was killed"
    ended = {"state": "interrupted", "message": message, "updated_at": time.time()}
    state = _counted(run_path, state).model_copy(update=ended)
    write_progress(run_path, state)
    return [f"the job is marked as interrupted; {state.unfinished_rows:,} rows are left"]


def _counted(run_path: Path, state: ProgressState) -> ProgressState:
    """With what was committed after the job's last word; of a shard that word is what is known."""
    record = read_record(run_path)
    if record is None or record.num_shards > 1:
        return state
    try:
        stored = len(Store(record.store))
    except (HslibError, OSError):
        return state
    late = max(0, stored - state.stored)
    return state.model_copy(update={"ok": state.ok + late, "stored": stored})


def _end_server(run_path: Path) -> list[str]:
    """Stop the server that a job started here, with all that it has in tmpfs."""
    state = launch.read_state(run_path)
    if state is None or not state.for_job or not is_of_this_boot(state):
        return []
    if any(_user(process) != os.getuid() for process in members(state)):
        return []
    dumps = DumpDir(state.dump_dir)
    count = len(dumps.names()) if _is_mine(dumps.root) else 0
    done = [launch.stop(run_path)]
    if _is_mine(dumps.root):
        _clear(dumps, "hs-")
    return [*done, *_dumps_sentence(count, state.dump_dir)]


def _user(process: psutil.Process) -> int:
    """Whose process it is; this user's if it has just ended."""
    try:
        return int(process.uids().real)
    except psutil.NoSuchProcess:
        return os.getuid()


def _clear_dumps(run_path: Path, was_running: bool) -> list[str]:
    """Remove the dumps of a job whose server goes on, and the folder of one that is gone."""
    state = read_progress(run_path)
    done = []
    for root, prefix in (state.dump_dirs if state and was_running else {}).items():
        if _is_mine(Path(root)):
            done += _dumps_sentence(_clear(DumpDir(root), prefix), root)
    own = DumpDir(dump_path("", run_path))
    if launch.read_state(run_path) is None and _is_mine(own.root) and not own.is_served():
        done += [*_dumps_sentence(own.discard(), str(own.root)), f"removed {own.root}"]
    return done


def _clear(dumps: DumpDir, prefix: str) -> int:
    """Remove dumps until no late one comes; none while another job has the directory."""
    count, began_at = 0, time.monotonic()
    last_at = began_at
    while time.monotonic() < min(last_at + _QUIET_S, began_at + _LATE_S):
        try:
            with Lock(dumps.root / ".lock", f"dump directory {dumps.root}"):
                names = dumps.names(prefix)
                dumps.clear(names)
                dumps.sweep()
        except JobError:
            return count
        if not count and not names and not dumps.is_served():
            return 0
        count += len(names)
        last_at = time.monotonic() if names else last_at
        time.sleep(0.1)
    return count


def _is_mine(path: Path) -> bool:
    """Whether a directory is this user's, and no link."""
    return path.is_dir() and not path.is_symlink() and path.lstat().st_uid == os.getuid()


def _dumps_sentence(count: int, root: str) -> list[str]:
    return [f"removed {count} dumps in {root}"] if count else []
