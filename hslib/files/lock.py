"""A file lock that names its owner; the kernel releases it when the process dies."""

import contextlib
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import IO, Any

from hslib.errors import JobError
from hslib.files.explain import explained


class Lock:
    """An exclusive lock on ``path``, as a context manager.

    Args:
        what: what is locked, as the error should call it.
        about: more of its owner, beside ``pid`` and ``host``.
    """

    def __init__(self, path: Path, what: str, **about: str) -> None:
        self.path, self._what, self._about = path, what, about
        self._handle: IO[str] | None = None

    def __enter__(self) -> "Lock":
        self.acquire()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()

    def acquire(self, patience_s: float = 0.0) -> None:
        """Take the lock.

        Args:
            patience_s: how long another process may go on holding it.

        Raises:
            JobError: another process holds it (``owner`` says which), or the file system can't
                lock (``file_system`` says which).
        """
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return self._acquire()
            except JobError as error:
                if "owner" not in error.fields or time.monotonic() >= deadline:
                    raise
            time.sleep(0.05)

    def _acquire(self) -> None:
        with explained(JobError, f"{self._what} can't be locked", self.path):
            handle = self.path.open("a+")
            try:
                self._lock(handle)
            except BaseException:
                handle.close()
                raise
        self._handle = handle

    def _lock(self, handle: IO[str]) -> None:
        """Lock an open file and write this process into it."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            raise JobError(
                f"{self._what} is in use by another job",
                owner=handle.read().strip() or "unknown",
                path=str(self.path),
                fix="wait for it or stop it; two jobs must not share it",
            ) from None
        handle.seek(0)
        handle.truncate()
        handle.write(json.dumps(self._owner()))
        handle.flush()

    def _owner(self) -> dict[str, object]:
        return {"pid": os.getpid(), "host": socket.gethostname(), **self._about}

    def require_held(self) -> None:
        """Raises :class:`JobError` when it is not; the kernel keeps it while the process lives."""
        if self._handle is None:
            raise JobError(f"the lock of {self._what} is not held", path=str(self.path))

    def owner(self) -> dict[str, Any] | None:
        """Who holds it, and ``since`` when (unix seconds); None: no process, or no lock is there.

        Another process may take the lock in this moment: then it waits for one more try.
        """
        with contextlib.suppress(OSError, ValueError), self.path.open() as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                since = os.fstat(handle.fileno()).st_mtime
                return {**json.load(handle), "since": since}
        return None

    def release(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None
