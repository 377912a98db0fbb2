"""One replica of a job on a cluster: a server of its own and the engine, in one process.

Takes blocks of rows and tells what became of each row. Knows nothing of the cluster. What goes
wrong is returned, not raised: a :class:`Problem` says whether another replica can do better.
"""

import logging
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import tenacity

from hslib.dataset import Sample
from hslib.errors import HslibError, JobError, ServerError
from hslib.job.extractor import Extractor
from hslib.job.progress import open_log
from hslib.parameters import ExtractionParameters
from hslib.server import launch as server
from hslib.server.check import ServerCheck
from hslib.server.endpoints import Endpoints, open_endpoints
from hslib.store import JournalMark, Manifest, StoreWriter

_LOCK_WAIT_S = 150.0  # a lock on an object store is stale after a minute


@dataclass(frozen=True)
class Problem:
    """Why a replica can't go on.

    ``replica``: its server or its host; another one may do better. ``job``: no replica can (a
    full disk, a store of another kind).
    """

    kind: Literal["replica", "job"]
    text: str

    @classmethod
    def of(cls, error: BaseException) -> "Problem":
        fields = error.fields if isinstance(error, HslibError) else {}
        # a lock that is another's is this host's trouble: it was away for too long
        is_own = isinstance(error, ServerError) or bool(fields.get("down")) or "owner" in fields
        return cls("replica" if is_own else "job", str(error) or type(error).__name__)


@dataclass(frozen=True)
class ReplicaFacts:
    """What a proven replica is. ``dump_room_bytes``: what one dump may take there."""

    host: str
    pid: int
    dump_dir: str
    check: ServerCheck
    longest_row: int
    dump_room_bytes: int


@dataclass(frozen=True)
class Failure:
    """A row that was recorded as failed, in the replica's journal."""

    index: int
    num_tokens: int
    check: str
    reason: str


@dataclass
class BlockReport:
    """What became of a block's rows; all of it is committed."""

    ok: int = 0
    num_tokens: int = 0
    size_bytes: int = 0
    last_index: int | None = None
    request_s: float = 0.0  # of the last row
    failures: list[Failure] = field(default_factory=list)
    unfinished: list[int] = field(default_factory=list)  # indices of rows without an outcome
    problem: Problem | None = None


class _Ticket:
    """A block in work."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.left = {sample.index for sample in samples}
        self.report = BlockReport()
        self.is_through = threading.Event()

    def settle(self, index: int) -> None:
        self.left.discard(index)
        if not self.left:
            self.is_through.set()

    def abandon(self, problem: Problem | None) -> None:
        self.report.unfinished, self.report.problem = sorted(self.left), problem
        self.is_through.set()


class Replica:
    """Started once, then begun and ended for each job; :meth:`extract` may be called in parallel.

    Args:
        parameters: as :func:`of_replica` makes them of the job's.
    """

    def __init__(self, number: int, parameters: ExtractionParameters) -> None:
        self.number, self._parameters = number, parameters
        self._fleet: Endpoints | None = None
        self._engine: Extractor | None = None
        self._thread: threading.Thread | None = None
        self._held = ExitStack()
        self._lock = threading.Lock()
        self._tickets: dict[int, _Ticket] = {}
        self._has_ended = True
        self._problem: Problem | None = None
        self.log = logging.getLogger("hslib.replica")

    def place(self) -> str:
        """The host that this runs on."""
        return socket.gethostname()

    def start(self) -> ReplicaFacts | Problem:
        """Start and prove the server."""
        try:
            server.stop(self._parameters.run_path)  # of one that was here before and was killed
            self._fleet = open_endpoints(self._parameters)
            return ReplicaFacts(
                host=socket.gethostname(),
                pid=os.getpid(),
                dump_dir=str(self._fleet.dump_paths[0]),
                check=self._fleet.check,
                longest_row=self._fleet.longest_row,
                dump_room_bytes=self._fleet.dump_room_bytes(),
            )
        except (HslibError, OSError) as error:
            return Problem("replica", str(error))

    def begin(self, parameters: ExtractionParameters, manifest: Manifest) -> JournalMark | Problem:
        """Open a job's store and be ready for blocks; says where this replica's lines begin."""
        assert self._fleet is not None, "start() comes first"
        self.log = open_log(parameters.run_path / "extraction.log")
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_delay(_LOCK_WAIT_S),
            wait=tenacity.wait_fixed(0.5),
            retry=tenacity.retry_if_exception(is_locked),
            reraise=True,
        )
        try:
            held, writer = retrying(self._open, parameters, manifest)
        except (HslibError, OSError) as error:
            return Problem.of(error)
        self._held, self._has_ended, self._problem = held, False, None
        self._engine = Extractor(parameters, self._fleet, writer, self)
        self._thread = threading.Thread(target=self._run, args=(self._engine,), daemon=True)
        self._thread.start()
        return writer.mark

    def _open(
        self, parameters: ExtractionParameters, manifest: Manifest
    ) -> tuple[ExitStack, StoreWriter]:
        """The dump directory and the journal, locked."""
        assert self._fleet is not None
        with ExitStack() as held:
            held.enter_context(self._fleet.claimed(parameters.scan_scope))
            writer = held.enter_context(open_replica_writer(parameters, manifest, self.number))
            return held.pop_all(), writer

    def _run(self, engine: Extractor) -> None:
        problem = None
        try:
            engine.run()
        except BaseException as error:
            problem = Problem.of(error)
            self.log.error("stopped: %s", error)
        with self._lock:
            self._has_ended, self._problem = True, problem
            tickets, self._tickets = set(self._tickets.values()), {}
        self._held.close()
        for ticket in tickets:
            ticket.abandon(problem)

    def extract(self, samples: Sequence[Sample]) -> BlockReport:
        """Return when every row of the block has its outcome, or this replica can't go on."""
        ticket = _Ticket(samples)
        with self._lock:
            if self._has_ended or self._engine is None:
                ticket.abandon(self._problem)
                return ticket.report
            self._tickets.update(dict.fromkeys(ticket.left, ticket))
            self._engine.feed.put(samples)
        ticket.is_through.wait()
        return ticket.report

    def stored(self, index: int, num_tokens: int, size_bytes: int, request_s: float) -> None:
        """The engine's word: a row is committed."""
        with self._lock:
            ticket = self._tickets.pop(index)
            report = ticket.report
            report.ok += 1
            report.num_tokens += num_tokens
            report.size_bytes += size_bytes
            report.last_index, report.request_s = index, request_s
            ticket.settle(index)

    def failed(self, index: int, num_tokens: int, check: str, reason: str) -> None:
        """The engine's word: a row is recorded as failed."""
        self.log.error("[%d] failed: %s", index, reason)
        with self._lock:
            ticket = self._tickets.pop(index)
            ticket.report.failures.append(Failure(index, num_tokens, check, reason))
            ticket.settle(index)

    def stop(self) -> None:
        """Begin nothing more; blocks come back with what is unfinished."""
        if self._engine is not None:
            self._engine.feed.close()

    def end(self) -> None:
        """No block will come any more; returns when the store is closed."""
        if self._engine is not None and self._thread is not None:
            self._engine.feed.finish()
            self._thread.join()

    def close(self) -> str:
        """Stop the server; says what was done."""
        self.stop()
        return self._fleet.close() if self._fleet is not None else ""


def is_locked(error: BaseException) -> bool:
    """Whether another process holds a lock: one that was killed may take a moment to end."""
    return isinstance(error, JobError) and "owner" in error.fields


def of_replica(job: ExtractionParameters, number: int) -> ExtractionParameters:
    """The job's parameters as they are for one replica: a run and a dump directory of its own."""
    name = f"{number:05d}"
    dumps = Path(str(job.dump_dir)).absolute() / f"replica-{name}" if job.dump_dir else ""
    return job.model_copy(
        update={
            "run_dir": str(job.run_path / "replicas" / name),
            "store_dir": str(job.store_path),
            "model_path": str(job.model_folder) if job.model_path else "",
            "dump_dir": str(dumps),
            "ray_address": "",
            "num_replicas": 1,
        }
    )


def open_replica_writer(
    parameters: ExtractionParameters, manifest: Manifest, number: int
) -> StoreWriter:
    return StoreWriter(
        parameters.store_path,
        manifest,
        parameters.shard_index,
        parameters.num_shards,
        replica=number,
    )
