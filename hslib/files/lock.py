"""A file lock that names its owner; the kernel releases it when the process dies."""

import fcntl
import json
import os
import socket
from pathlib import Path
from typing import IO

from hslib.errors import JobError


class Lock:
    """An exclusive lock on ``path``, as a context manager.

    Args:
        what: what is locked, as the error should call it.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path, self._what = path, what
        self._handle: IO[str] | None = None

    def __enter__(self) -> "Lock":
        self.acquire()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Raises :class:`JobError` with the owner when another process holds it."""
        handle = self.path.open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            owner = handle.read().strip() or "unknown"
            handle.close()
            raise JobError(
                f"{self._what} is in use by another job",
                owner=owner,
                path=str(self.path),
                fix="wait for it or stop it; two jobs must not share it",
            ) from None
        handle.seek(0)
        handle.truncate()
        handle.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        handle.flush()
        self._handle = handle

    def require_held(self) -> None:
        """Raises :class:`JobError` when it is not; while the process lives the kernel keeps it."""
        if self._handle is None:
            raise JobError(f"the lock of {self._what} is not held", path=str(self.path))

    def release(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None
