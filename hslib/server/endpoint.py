"""One server and its dump directory: rows in, dumps out; and the server's return when it is gone.

Knows nothing of retries, of other endpoints or of the store.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

import xxhash

from hslib.dataset import Sample
from hslib.errors import DumpError, JobError, RequestError, ServerError
from hslib.files import Lock
from hslib.parameters import ExtractionParameters
from hslib.server.check import ServerCheck, check_server, differences
from hslib.server.client import ServerClient
from hslib.server.dumps import DUMP_SHARE, Dump, DumpDir
from hslib.server.validate import validate

MOST_RESTARTS = 3  # of a server without a sample between; or ``max_attempts``, if that is more
_LOOK_EVERY_S = 0.5  # while a server is away
_LOCK_PATIENCE_S = 2.0  # with a process that cleans after a killed job

Answer = Dump | DumpError | RequestError


class OwnServer(Protocol):
    """A server of this run, which can be looked after; see :mod:`hslib.server.endpoints`."""

    @property
    def url(self) -> str: ...

    @property
    def dump_path(self) -> Path: ...

    @property
    def is_the_jobs(self) -> bool:
        """Whether it was started for a job, and so is the job's to start again and to stop."""

    def is_alive(self) -> bool: ...

    def start_again(self) -> ServerCheck:
        """Start another in its place; returns when that has passed its check."""

    def find_successor(self) -> bool:
        """Whether somebody has started another in its place; this is that one from then on."""

    def stop(self) -> None: ...


@dataclass
class Endpoint:
    """A checked server and its dump directory.

    Args:
        own: None for a server that somebody else runs.
    """

    url: str
    dumps: DumpDir
    api_key: str
    check: ServerCheck
    parameters: ExtractionParameters
    own: OwnServer | None = None
    dump_prefix: ClassVar[str] = "hs-"  # of the names of a job's dumps
    restarts: int = field(default=0, init=False)  # since the last sample that was taken
    samples_per_request: int = field(init=False)
    most_requests: int = field(init=False)  # in flight at once

    def __post_init__(self) -> None:
        self.samples_per_request = self.parameters.samples_per_request
        self.most_requests = self.parameters.concurrency
        self._client = self._new_client()
        self._lock: Lock | None = None

    def _new_client(self) -> ServerClient:
        return ServerClient(self.url, self.api_key, self.parameters.request_timeout_s)

    @property
    def origin(self) -> str:
        """In words, for a table."""
        if self.own is None:
            return "named by server_url"
        return "started for this job" if self.own.is_the_jobs else "the run's own"

    @property
    def most_bytes(self) -> int:
        """Bytes of dumps that may lie in the dump directory at once."""
        free = int(self.dumps.free_bytes() * DUMP_SHARE)
        return min(free, self.check.plugin.budget_bytes or free)

    def leftovers(self) -> list[str]:
        """Dumps that no living job waits for, when the dump directory's lock is held."""
        return self.dumps.names(self.dump_prefix)

    def claim(self) -> None:
        """Lock the dump directory and empty it.

        Raises:
            JobError: another job has it.
        """
        lock = self._take_lock()
        try:
            self.dumps.clear(self.leftovers())
        except BaseException:
            lock.release()
            raise
        self._lock = lock

    def _take_lock(self) -> Lock:
        lock = Lock(self.dumps.root / ".lock", f"dump directory {self.dumps.root}")
        lock.acquire(_LOCK_PATIENCE_S)
        return lock

    def release(self) -> None:
        """Empty the dump directory of late answers and unlock it."""
        if self._lock is not None:
            self.dumps.clear(self.leftovers())
            self._lock.release()
            self._lock = None

    def send(self, samples: Sequence[Sample], rids: Sequence[str]) -> list[Answer]:
        """One request; each sample's dump, or why there is none, in the order of ``samples``.

        A dump is complete and not yet validated. It stays until it is removed.

        Raises:
            ServerError: the server refuses the API key.
        """
        self.dumps.clear(rids)
        try:
            self._client.prefill([sample.input_ids for sample in samples], rids)
        except RequestError as error:
            return [self._gone() or error] * len(samples)
        return [self._dump_of(rid) for rid in rids]

    def _dump_of(self, rid: str) -> Answer:
        try:
            self.dumps.wait(rid, self.parameters.dump_timeout_s)
            return self.dumps.load(rid)
        except (DumpError, RequestError) as error:
            return self._gone() or error

    def validate(self, dump: Dump, sample: Sample) -> "xxhash.xxh3_64":
        """Check that a dump is this sample's states; the running hash over them.

        Raises:
            DumpError: it is not.
            RequestError: another process serves since the server was checked, or the dump
                directory was removed or emptied.
        """
        if {dump.mark, self.dumps.plugin_mark()} != {self.check.mark}:
            raise self._gone() or RequestError(
                "the server was started again meanwhile",
                down=True,
                restarted=True,
                index=sample.index,
            )
        states_hash = validate(dump, sample, self.check.expected)
        self.restarts = 0
        return states_hash

    def require_dump_dir(self) -> None:
        """Raises :class:`RequestError` (``down``) when the dump directory is removed or emptied."""
        gone = self._gone()
        if gone is not None:
            raise gone

    def _gone(self) -> RequestError | None:
        if self._is_marked():
            return None
        how = "was emptied" if self.dumps.root.is_dir() else "was removed"
        return RequestError(
            f"the dump directory {self.dumps.root} {how} while the job runs",
            down=True,
            dump_dir_gone=True,
            fix="systemd-logind empties a user's /dev/shm at logout (RemoveIPC=yes): run "
            "`loginctl enable-linger`, or set dump_dir to a tmpfs of your own; "
            + ("the job starts its server again" if self._is_ours() else "start the server again"),
        )

    def _is_marked(self) -> bool:
        """Whether the dump directory has its server's plugin.json."""
        return self.dumps.plugin_mark() != (0, 0)

    def await_return(self, error: Exception, is_stopping: threading.Event) -> None:
        """Return when a server that went away is back, and is the one that the job began with.

        A server that the job started is started again if it died.

        Raises:
            JobError: it does not come back in time, or died and is no server of this job.
            ServerError: another model or other layers came back, or it can't be started.
        """
        deadline = time.monotonic() + self.parameters.server_wait_s
        time.sleep(0.2)  # a server that drops connections and stays up must not be hammered
        while not self._is_back():
            if is_stopping.is_set():
                raise self._lost("is gone", error)
            if self._is_ours() and self._is_lost():
                self._start_again(error)
                return
            if time.monotonic() > deadline:
                raise self._lost(f"did not come back in {self.parameters.server_wait_s:g} s", error)
            time.sleep(_LOOK_EVERY_S)
            self._find_successor()

    def _is_ours(self) -> bool:
        return self.own is not None and self.own.is_the_jobs

    def _is_lost(self) -> bool:
        """Whether the run's server can't come back by itself."""
        assert self.own is not None
        return not (self.own.is_alive() and self._is_marked())

    def _lost(self, how: str, error: Exception) -> JobError:
        return JobError(
            f"the server at {self.url} {how}: {error}",
            down=True,
            fix="see its log, start it again, and run the job again to resume",
        )

    def _find_successor(self) -> None:
        """The run's own server may be started anew, by notebook 02, at another port."""
        if self.own is not None and self.own.find_successor():
            self._move_to(self.own)

    def _move_to(self, own: OwnServer) -> None:
        self.url, self.dumps = own.url, DumpDir(own.dump_path)
        self._client.close()
        self._client = self._new_client()

    def _start_again(self, error: Exception) -> None:
        if self.restarts >= max(MOST_RESTARTS, self.parameters.max_attempts):
            raise self._lost(f"died {self.restarts + 1} times without a sample in between", error)
        assert self.own is not None
        self.restarts += 1
        check = self.own.start_again()
        self._move_to(self.own)
        self._accept(check)

    def _is_back(self) -> bool:
        """Whether the server answers and passes its check; it may go away again meanwhile."""
        if not (self._client.is_up() and self._is_marked()):
            return False
        try:
            with ServerClient(self.url, self.api_key, 60.0) as client:
                self._accept(check_server(client, self.dumps))
        except (RequestError, ServerError) as error:
            # a dying server may answer once more, and be gone when the canary comes; and the dump
            # directory of a server that lives may have been made anew, without its plugin.json
            is_passing = error.fields.get("down") or self.dumps.plugin() is None
            if isinstance(error, ServerError) and not is_passing:
                raise
            return False
        return True

    def _accept(self, now: ServerCheck) -> None:
        """Take a check of the server as it is now.

        Raises:
            ServerError: something else is served.
        """
        differing = differences(self.check, now)
        if differing:
            raise ServerError(
                f"another server came back: {', '.join(differing)} differ",
                differing=differing,
                fix="start the one that the job began with, and run the job again to resume",
            )
        self.check = now
        if self._lock is not None:  # the directory may be another, or made anew without its lock
            self._lock.release()
            self._lock = None
            self._lock = self._take_lock()

    def close(self) -> str:
        """Stop the server if it was started for a job; says what was done."""
        self._client.close()
        if self.own is None or not self.own.is_the_jobs:
            return "The server was running before and stays."
        self.own.stop()
        return "The server that was started for this job is stopped."
