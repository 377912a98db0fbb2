"""A lock in a bucket: an object that its owner renews every 15 s.

A lock that was not renewed for 60 s is stale, and another job may take it. Two jobs that both
believe to hold it damage nothing, since no name in a store is used twice; they only do the same
work, until one of them notices.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time

from hslib.errors import JobError, StoreError
from hslib.store.bucket.objects import Objects

RENEW_S, STALE_S = 15.0, 60.0
_LOOK_EVERY_S = 1.0


class ObjectLock:
    """An exclusive lock on the name of an object.

    Args:
        what: what is locked, as the error should call it.
    """

    def __init__(self, objects: Objects, name: str, what: str) -> None:
        self._objects, self._name, self._what = objects, name, what
        self._token, self._times = secrets.token_hex(8), 0
        self._etag = ""
        self._renewed_at = -float("inf")
        self._is_lost = False
        self._stop = threading.Event()
        self._renewer = threading.Thread(target=self._renew, name="hslib-lock", daemon=True)

    def acquire(self) -> None:
        """Take the lock; waits up to a minute to see whether another owner renews it.

        Raises:
            JobError: another job renewed it (``owner`` says which).
            StoreError: the object store refuses, or can't be reached.
        """
        seen = ""
        while not self._take(""):
            try:
                found = self._objects.head(self._name)
            except FileNotFoundError:
                continue  # released just now
            if found.age_s >= STALE_S and self._take(found.etag):
                break
            if seen and found.etag != seen:
                raise self._in_use()
            seen = found.etag
            time.sleep(_LOOK_EVERY_S)
        self._renewer.start()

    def require_held(self) -> None:
        """Raises :class:`JobError` when another job may hold it by now."""
        if self._is_lost or time.monotonic() - self._renewed_at > STALE_S:
            raise JobError(
                f"{self._what} is no longer this job's: its lock was taken by another job, or "
                f"could not be renewed for {STALE_S:g} s",
                owner=self._owner(),
                path=f"{self._objects.url}/{self._name}",
                fix="see to it that only one job works there, and run again to resume",
            )

    def release(self) -> None:
        """Delete the lock object, if it is still this job's."""
        self._stop.set()
        if not self._etag:
            return
        with contextlib.suppress(StoreError):  # it gets stale by itself
            if self._is_mine():
                self._objects.delete(self._name)
        self._etag = ""

    def _take(self, etag: str) -> bool:
        """Replace the lock object if it has this ETag ("" = if there is none); False if not."""
        asked_at = time.monotonic()
        self._times += 1
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "token": self._token}
        data = json.dumps({**owner, "renewed": self._times}).encode()
        made = self._objects.put_if(self._name, data, etag)
        if made is None:
            return False
        self._etag, self._renewed_at = made, asked_at
        return True

    def _renew(self) -> None:
        while not self._stop.wait(RENEW_S):
            with contextlib.suppress(StoreError):  # require_held() raises if this goes on
                if not self._take(self._etag):
                    self._is_lost = True
                    return

    def _is_mine(self) -> bool:
        return f'"token": "{self._token}"' in self._owner()

    def _owner(self) -> str:
        try:
            return self._objects.get(self._name).decode(errors="replace")
        except (FileNotFoundError, StoreError):
            return "unknown"

    def _in_use(self) -> JobError:
        return JobError(
            f"{self._what} is in use by another job",
            owner=self._owner(),
            path=f"{self._objects.url}/{self._name}",
            fix="wait for it or stop it; two jobs must not share it",
        )
