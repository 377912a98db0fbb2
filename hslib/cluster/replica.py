"""One replica of a job on a cluster: a server of its own and the extractor, in one process.

Takes a shard of the job's rows at a time. Knows nothing of the cluster.
"""

import copy
import logging
import os
import socket
import threading
import time

import tenacity

from hslib.cluster.messages import FailedRow, ReplicaFacts, ShardReport
from hslib.cluster.shards import Shard
from hslib.errors import JobError, ServerError
from hslib.job import Extractor, open_log
from hslib.parameters import ExtractionParameters
from hslib.server import Endpoints, launch, open_endpoints
from hslib.store import Manifest, StoreWriter

_TELL_EVERY_S = 0.5
_LOCK_WAIT_S = 150.0  # a lock on an object store is stale after a minute


class ShardReporter:
    """Counts a shard's outcomes; the extractor's reporter."""

    def __init__(self, name: str, log: logging.Logger) -> None:
        self.name, self.log = name, log
        self._report, self._lock = ShardReport(), threading.Lock()

    def stored(self, index: int, num_tokens: int, size_bytes: int, request_s: float) -> None:
        with self._lock:
            self._report.ok += 1
            self._report.num_tokens += num_tokens
            self._report.size_bytes += size_bytes
            self._report.last_index, self._report.request_s = index, request_s

    def failed(self, index: int, num_tokens: int, check: str, reason: str) -> None:
        self.log.error("[%d] failed: %s", index, reason)
        with self._lock:
            self._report.failures.append(FailedRow(index, num_tokens, check, reason))

    def report(self) -> ShardReport:
        """As it is now."""
        with self._lock:
            return copy.deepcopy(self._report)


class Replica:
    """Started once; then takes shards, one at a time. The other methods may be called meanwhile.

    Args:
        parameters: as :func:`~hslib.cluster.messages.of_replica` makes them of the job's.
    """

    def __init__(self, number: int, parameters: ExtractionParameters) -> None:
        self.number, self._parameters = number, parameters
        self._endpoints: Endpoints | None = None
        self._extractor: Extractor | None = None
        self._reporter: ShardReporter | None = None
        self._stopped_run = ""

    def place(self) -> str:
        """The host that this runs on."""
        return socket.gethostname()

    def start(self) -> ReplicaFacts:
        """Start and check the server.

        Raises:
            HslibError: it can't be started or trusted.
        """
        launch.stop(self._parameters.run_path)  # of one that was here before and was killed
        # the lock of a host that died is another's for a while on a network file system
        self._endpoints = _patient(open_endpoints)(self._parameters)
        return ReplicaFacts(
            host=socket.gethostname(),
            pid=os.getpid(),
            check=self._endpoints.check,
            longest_row=self._endpoints.longest_row,
            dump_room_bytes=self._endpoints.dump_room_bytes(),
        )

    def extract(
        self, parameters: ExtractionParameters, manifest: Manifest, shard: Shard
    ) -> ShardReport:
        """Extract what no earlier try at this shard has stored.

        Args:
            parameters: of the job now, as :func:`~hslib.cluster.messages.of_replica` makes them.

        Raises:
            HslibError, OSError: the server, or the store, is of no use any more; everything
                committed before stays.
        """
        if self._endpoints is None:  # Ray has restarted this actor
            raise ServerError("this replica's process was restarted, and has no server yet")
        self._reporter = ShardReporter(shard.name, open_log(parameters.run_path / "extraction.log"))
        with _open_writer(parameters, manifest, shard) as writer, self._endpoints.claimed():
            before = writer.stored()
            for entry in before.values():
                self._reporter.stored(
                    entry.index, entry.num_tokens, entry.size_bytes, entry.latency_s
                )
            rest = [sample for sample in shard.samples if sample.index not in before]
            self._extractor = Extractor(
                parameters, self._endpoints.members, writer, self._reporter, rest
            )
            if shard.run == self._stopped_run:
                self._extractor.close()
            self._extractor.run()
            return self._reporter.report()

    def told(self, name: str) -> ShardReport | None:
        """How far the shard of that name is, some moments from now; None while it is not begun."""
        time.sleep(_TELL_EVERY_S)
        reporter = self._reporter
        return reporter.report() if reporter is not None and reporter.name == name else None

    def stop(self, run: str) -> None:
        """Send nothing more of a run; its shard comes back when what is in flight is stored."""
        self._stopped_run = run
        if self._extractor is not None:
            self._extractor.close()

    def close(self) -> str:
        """Stop the server; says what was done."""
        return self._endpoints.close() if self._endpoints is not None else ""


def _is_locked(error: BaseException) -> bool:
    """Whether another process holds a lock: one that was killed may take a moment to end."""
    return isinstance(error, JobError) and "owner" in error.fields


_patient = tenacity.retry(
    stop=tenacity.stop_after_delay(_LOCK_WAIT_S),
    wait=tenacity.wait_fixed(0.5),
    retry=tenacity.retry_if_exception(_is_locked),
    reraise=True,
)


@_patient
def _open_writer(parameters: ExtractionParameters, manifest: Manifest, shard: Shard) -> StoreWriter:
    """The shard's journal, once the process of an earlier try at it is gone."""
    return StoreWriter(
        parameters.store_path,
        manifest,
        parameters.shard_index,
        parameters.num_shards,
        part=shard.name,
        max_encoding_error=parameters.max_encoding_error,
    )
