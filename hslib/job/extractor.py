"""The engine: samples -> requests -> validated dumps -> store, in parallel.

Workers share the feed, the store's writer and the reporter; each belongs to one server's
lane. What an outcome means is decided by :func:`verdict`, a function of values.
"""

import functools
import itertools
import logging
import secrets
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

import tenacity
import xxhash

from hslib.dataset import Sample
from hslib.errors import DumpError, HslibError, JobError, RequestError, ServerError
from hslib.job.forecast import requests_at_once
from hslib.job.interrupt import Interrupts
from hslib.job.lane import Lane
from hslib.job.scheduler import Feed
from hslib.parameters import ExtractionParameters
from hslib.server.dumps import Dump, request_id
from hslib.server.endpoints import Endpoints
from hslib.store import Entry, StoreWriter

_RUNS = 10**9  # request ids of two runs differ by a random number below this

Verdict = Literal["retry", "fail", "wait", "stop"]


def verdict(error: BaseException) -> Verdict:
    """What an error of one try means. Pure.

    ``wait``: the server is away, which is no fault of the sample. ``stop``: no sample can
    succeed now (a full disk, a server that serves something else).
    """
    if isinstance(error, RequestError):
        if error.fields.get("down"):
            return "wait"
        return "retry" if error.fields.get("retry") else "fail"
    if isinstance(error, DumpError):
        return "retry"
    return "stop"


class Reporter(Protocol):
    """Who is told of every sample's outcome, from any worker."""

    log: logging.Logger

    def stored(self, index: int, num_tokens: int, size_bytes: int, request_s: float) -> None: ...

    def failed(self, index: int, num_tokens: int, check: str, reason: str) -> None: ...


class Extractor:
    """Extracts samples with the servers of one host.

    Args:
        reporter: is told of each outcome after it is committed.
        samples: all there are, read as they are wanted; None = they come by ``feed.put``, until
            ``feed.finish``.
    """

    def __init__(
        self,
        parameters: ExtractionParameters,
        fleet: Endpoints,
        writer: StoreWriter,
        reporter: Reporter,
        samples: Iterable[Sample] | None = None,
    ) -> None:
        self._parameters, self._writer, self._reporter = parameters, writer, reporter
        self._lanes = [Lane(member, parameters, self._deliver) for member in fleet.members]
        most_bytes = min(lane.budget.limit_bytes for lane in self._lanes)
        bytes_per_token = writer.manifest.state_bytes_per_token
        self.feed = Feed(parameters, bytes_per_token, most_bytes, samples)
        # a killed run's requests may still be in the server: ids must not repeat between runs
        self._numbers = itertools.count(secrets.randbelow(_RUNS) * 1000)
        self._tried: defaultdict[int, list[str]] = defaultdict(list)
        self._times_away: Counter[int] = Counter()
        self._in_a_row = 0  # failed samples since the last stored one
        self._fatal: BaseException | None = None
        self._aborted = threading.Event()
        # as many as may be in flight, and some to store what has come back
        single = parameters.scan_scope == "directory"
        count = 1 if single else requests_at_once(parameters.concurrency)
        workers = [lane for _ in range(count) for lane in self._lanes]
        self._lock = threading.Lock()
        self._working = len(workers)  # workers that have not ended
        self._threads = [
            threading.Thread(target=self._work, args=(lane,), name="hslib-worker", daemon=True)
            for lane in workers
        ]

    def run(self) -> bool:
        """Work until the feed is empty; False when an interrupt, or its closing, ended it early.

        A second interrupt abandons what is in flight and is raised.

        Raises:
            HslibError, OSError: what no sample could survive; in-flight work is finished first.
        """
        with Interrupts() as interrupts:
            for thread in self._threads:
                thread.start()
            while self._working:
                time.sleep(0.02)
                if interrupts.count > 1:
                    self._aborted.set()
                    raise KeyboardInterrupt
                if interrupts.count and not self.feed.closed:
                    self.feed.close()
                    self._reporter.log.warning("interrupted: finishing what is in flight")
        if self._fatal is not None:
            raise self._fatal
        return not self.feed.closed

    def _work(self, lane: Lane) -> None:
        try:
            while lane in self._lanes:
                group = self.feed.next(lane.budget)
                if group is None:
                    return
                away: dict[int, Exception] = {}
                try:
                    away = self._handle(lane, group)
                finally:
                    back = [sample for sample in group if sample.index in away]
                    self.feed.release(group, lane.budget, back)
                if away:
                    self._await(lane, next(iter(away.values())))
        except BaseException as error:
            self._fatal = self._fatal or error
            self.feed.close()
        finally:
            with self._lock:
                self._working -= 1

    def _await(self, lane: Lane, error: Exception) -> None:
        """Wait for a lane's server; a lane whose server stays away is given up if others work.

        Raises:
            JobError, ServerError: it was the last one.
        """
        try:
            lane.await_return(error, lambda: self.feed.closed)
            self.feed.resume(lane.budget)
        except (JobError, ServerError) as gone:
            with self._lock:
                others = [other for other in self._lanes if other is not lane]
                if not others:
                    raise
                self._lanes = others
            self.feed.resume(lane.budget, give_up=True)
            self._reporter.log.error("going on with %d other server(s): %s", len(others), gone)

    def _handle(self, lane: Lane, group: list[Sample]) -> dict[int, Exception]:
        """One request for the group; whoever failed in it is tried again alone.

        Returns the samples whose server went away, by index, with the error.
        """
        answered = functools.partial(self.feed.answered, group, lane.budget)
        errors, away = self._try(lane, group, answered), {}
        for sample in group:
            error = errors.get(sample.index)
            if error is not None and verdict(error) != "wait":
                # a refusal of several samples does not say which of them is meant
                refused_together = len(group) > 1 and verdict(error) == "fail"
                error = self._try_again(lane, sample, None if refused_together else error)
            if error is None or self._is_to_blame(sample, error, len(group)):
                self._forget_tries(lane, sample)
            else:
                away[sample.index] = error
        return away

    def _forget_tries(self, lane: Lane, sample: Sample) -> None:
        """A sample has its outcome: what its other tries left takes up room no longer."""
        tried = self._tried.pop(sample.index, [])
        if len(tried) > 1 or sample.index in self._times_away:
            lane.dumps.clear(tried)

    def _is_to_blame(self, sample: Sample, error: Exception, company: int) -> bool:
        """Record a sample as failed whose server goes away whenever it is asked for it alone."""
        self._reporter.log.warning("[%d] no answer: %s", sample.index, error)
        self._times_away[sample.index] += company == 1
        if self._times_away[sample.index] < self._parameters.max_attempts:
            return False
        self._record_failure(sample, error)
        return True

    def _try(
        self,
        lane: Lane,
        group: Sequence[Sample],
        on_answer: Callable[[], None] = lambda: None,
    ) -> dict[int, Exception]:
        """One request under new ids; what earlier tries of its samples left is cleared."""
        rids = []
        for sample in group:
            tried = self._tried[sample.index]
            lane.dumps.clear(tried)
            tried.append(request_id(sample, next(self._numbers)))
            rids.append(tried[-1])
        return lane.send(group, rids, on_answer)

    def _try_again(self, lane: Lane, sample: Sample, error: Exception | None) -> Exception | None:
        """Retry one sample with growing pauses; record it as failed when nothing helps.

        Args:
            error: of its first try; None to try alone before judging.

        Returns:
            None when the sample has its outcome, the error when its server went away.
        """
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self._parameters.max_attempts),
            wait=tenacity.wait_exponential_jitter(multiplier=0.2, max=10.0),
            retry=tenacity.retry_if_exception(lambda e: verdict(e) == "retry"),
            reraise=True,
        )
        try:
            for attempt in retrying:
                with attempt:
                    if error is None:
                        error = self._try(lane, [sample]).get(sample.index)
                    if error is None or verdict(error) == "wait":
                        return error
                    number = len(self._tried[sample.index])
                    self._reporter.log.warning("[%d] try %d: %s", sample.index, number, error)
                    last, error = error, None
                    raise last
        except (RequestError, DumpError) as final:
            self._record_failure(sample, final)
        return None

    def _deliver(
        self, sample: Sample, dump: Dump, states_hash: "xxhash.xxh3_64", latency_s: float
    ) -> None:
        """Store and commit a validated dump."""
        if self._aborted.is_set():
            raise JobError("aborted before the sample was stored", index=sample.index)
        tries = max(1, len(self._tried[sample.index]))
        entry = self._writer.put(sample, dump, states_hash, tries, latency_s)
        self._in_a_row = 0
        self._reporter.stored(sample.index, sample.num_tokens, entry.size_bytes, latency_s)

    def _record_failure(self, sample: Sample, error: BaseException) -> None:
        reason = str(error)
        check = error.fields.get("check") if isinstance(error, HslibError) else None
        self._writer.record(failure(sample, reason, len(self._tried[sample.index])))
        self._reporter.failed(
            sample.index, sample.num_tokens, str(check or type(error).__name__), reason
        )
        self._in_a_row += 1
        if self._in_a_row >= self._parameters.max_failures_in_a_row:
            raise JobError(
                f"{self._in_a_row} samples in a row failed; the last: {reason}",
                index=sample.index,
                fix="remove the cause, then run again with retry_failed = True",
            )


def failure(sample: Sample, reason: str, attempts: int) -> Entry:
    return Entry(
        index=sample.index,
        id=sample.id,
        status="failed",
        num_tokens=sample.num_tokens,
        digest=sample.digest,
        mask_digest=sample.mask_digest,
        attempts=attempts,
        reason=reason,
        finished_at=time.time(),
    )
