"""Keeps two jobs out of one run, or one store, from before their servers start.

A lock of this process, and not of one object: a notebook may open its servers twice.
"""

import contextlib
import json
import socket
import time
import weakref
from pathlib import Path

import psutil

from hslib.errors import JobError
from hslib.files import NO_LOCKS, Lock, explained

_RUN_LOCK = ".job.lock"
_PATIENCE_S = 60.0  # with a process that ends, or that cleans after one
_GRACE_S = 2.0  # a process that was killed just now looks alive for a moment
_held: "weakref.WeakValueDictionary[Path, _Held]" = weakref.WeakValueDictionary()


class JobLock:
    """Holds ``path`` until :meth:`release`, or until nothing refers to it any more.

    Args:
        what: what is locked, as the error should call it.
        role: "clean" for a process that holds it for moments.

    Raises:
        JobError: another process works there. One that has been killed, or that only cleans, is
            waited for.
    """

    def __init__(self, path: Path, what: str, role: str = "job") -> None:
        held = _held.get(path)
        if held is not None and not held.is_there():
            held = None  # its file was removed, and keeps nobody out
        if held is not None and role == "clean":
            raise JobError(f"{what} is in use by this process", fix="close its servers first")
        if held is None:
            held = _held[path] = _Held(path, what, role)
        self._held: _Held | None = held

    def release(self) -> None:
        self._held = None

    def end(self) -> None:
        """Release it for all that refer to it in this process, such as an error's traceback."""
        if self._held is not None:
            self._held.end()
            self._held = None

    def __enter__(self) -> "JobLock":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()


def run_lock(run_path: Path, role: str = "job") -> JobLock:
    """Keeps other jobs out of a run.

    Raises:
        JobError: one is at work there.
    """
    return JobLock(run_path / _RUN_LOCK, f"run {run_path}", role)


def job_since(run_path: Path) -> float | None:
    """When a job that has the run now took it, in unix seconds; None: none has it."""
    owner = Lock(run_path / _RUN_LOCK, f"run {run_path}").owner()
    return float(owner["since"]) if owner and owner.get("role") == "job" else None


class _Held:
    def __init__(self, path: Path, what: str, role: str) -> None:
        self._path = path
        with explained(JobError, f"the directory of {what} can't be made", path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        lock = Lock(path, what, role=role)
        try:
            _acquire(lock)
        except JobError as error:
            # a run may lie where there are no locks; what it writes to has locks of its own
            if role == "clean" or error.fields.get("errno") not in NO_LOCKS:
                raise
        self._inode = _inode(path)
        self._release = weakref.finalize(self, lock.release)

    def is_there(self) -> bool:
        return self._release.alive and _inode(self._path) == self._inode

    def end(self) -> None:
        self._release()


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return -1


def _acquire(lock: Lock) -> None:
    began_at = time.monotonic()
    while True:
        try:
            return lock.acquire()
        except JobError as error:
            if "owner" not in error.fields:  # it can't be locked
                raise
            patience = _PATIENCE_S if _is_ending(error.fields.get("owner", "")) else _GRACE_S
            if time.monotonic() - began_at > patience:
                raise
        time.sleep(0.1)


def _is_ending(owner: str) -> bool:
    """Whether the holder only cleans, or is a process of this host that has been killed."""
    try:
        found = json.loads(owner)
    except ValueError:
        return owner == "unknown"  # it writes its name in this moment
    if found.get("role") == "clean":
        return True
    if found["host"] != socket.gethostname():
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        return not psutil.Process(found["pid"]).cmdline()  # its memory is gone already
    return True
