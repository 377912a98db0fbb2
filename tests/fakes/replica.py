"""Replicas of a cluster whose servers are hand-made, and jobs on them."""

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import tenacity
from fakes.server import DROP, FakeServer

from hslib import extract
from hslib.cluster import replica as replica_module
from hslib.cluster.cluster import Cluster
from hslib.cluster.messages import ReplicaFacts
from hslib.cluster.opening import open_cluster
from hslib.cluster.replica import Replica
from hslib.errors import ServerError
from hslib.parameters import ExtractionParameters
from hslib.store import read_journal
from hslib.store.bucket import lock as objectlock


class FakeReplica(Replica):
    """A replica whose server is a hand-made one in its own process.

    ``extra_args`` says how it misbehaves: ``slow`` (each row takes 20 ms), ``dies-at-5`` (the
    process ends whenever it is asked for row 5), ``drops-at-5`` (replica 1's server drops that
    request and is gone), ``broken-1`` (replica 1 does not come up), ``impatient`` (locks are waited
    for, and stale, after moments).
    """

    def start(self) -> ReplicaFacts:
        habits = self._parameters.extra_args
        if f"broken-{self.number}" in habits:
            raise ServerError("no such model\nthe log's other lines")
        if "impatient" in habits:
            replica_module._open_writer.retry.stop = tenacity.stop_after_delay(40)  # type: ignore[attr-defined]
            objectlock.STALE_S = 10.0
        dumps = self._parameters.run_path / "dumps"
        dumps.parent.mkdir(parents=True, exist_ok=True)
        self.fake = FakeServer(dumps, Path(self._parameters.model_path))
        self.fake.misbehave = self._misbehave
        self._parameters = self._parameters.model_copy(
            update={"server_url": self.fake.url, "dump_dir": str(dumps)}
        )
        return super().start()

    def _misbehave(self, rid: str, _ids: np.ndarray, _attempt: int) -> int | None:
        row = rid.split("-")[1]
        habits = self._parameters.extra_args
        if "slow" in habits and len(row) < 6:  # not the canary
            time.sleep(0.02)
        if f"dies-at-{row}" in habits:
            os._exit(1)
        if f"drops-at-{row}" in habits and self.number == 1:
            threading.Thread(target=self.fake.stop, daemon=True).start()
            time.sleep(0.2)
            return DROP
        return None


@contextlib.contextmanager
def opened(parameters: ExtractionParameters) -> Iterator[Cluster]:
    found = open_cluster(parameters, replica_class=FakeReplica)
    try:
        yield found
    finally:
        found.close()


def run(parameters: ExtractionParameters) -> extract.Result:
    with opened(parameters) as servers:
        return extract.run(extract.prepare(parameters, servers), servers)


def ok_lines(store: Path) -> Counter[int]:
    """How often each row was stored."""
    return Counter(
        entry.index
        for journal in store.glob("journal*.jsonl")
        for entry in read_journal(journal)
        if entry.status == "ok"
    )


def when_stored(parameters: ExtractionParameters, count: int, act: Callable[[], None]) -> None:
    """Do something in the middle of a job."""

    def wait() -> None:
        while sum(ok_lines(parameters.store_path).values()) < count:
            time.sleep(0.02)
        act()

    threading.Thread(target=wait, daemon=True).start()
