"""The extractor: samples in, stored samples out, on one or more endpoints.

One thread decides; a pool of threads waits for the servers and stores what they dumped. What an
error means is decided by :func:`reaction_to`, a function of values; what is sent next by the
scheduler.
"""

import itertools
import logging
import random
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, Protocol

from hslib.dataset import Sample
from hslib.errors import DumpError, EncodingError, HslibError, JobError, RequestError
from hslib.job.interrupt import Interrupts
from hslib.job.scheduler import Group, Load, PendingSample, Scheduler, requests_at_once
from hslib.job.tasks import Tasks
from hslib.parameters import ExtractionParameters
from hslib.server import Answer, Dump, Endpoint, dump_bytes, request_id
from hslib.store import Entry, StoreWriter

_RUNS = 10**9  # request ids of two runs differ by a random number below this
_LOOK_EVERY_S = 1.0  # at the dump directories

Reaction = Literal["retry", "fail", "wait", "stop"]
_PAUSE_S, _MOST_PAUSE_S = 0.2, 10.0
_Answers = tuple[list[Answer], float]  # of a request, in the order of its group; seconds


def reaction_to(error: BaseException) -> Reaction:
    """What is done after an error of one try. Pure.

    ``wait``: the server is away, which is no fault of the sample. ``stop``: no sample can
    succeed now (a full disk, a server that serves something else).
    """
    if isinstance(error, RequestError):
        if error.fields.get("down"):
            return "wait"
        return "retry" if error.fields.get("retry") else "fail"
    if isinstance(error, DumpError):
        return "retry"
    if isinstance(error, EncodingError):
        return "fail"
    return "stop"


class Reporter(Protocol):
    """Gets every sample's outcome after it is committed, from one thread."""

    log: logging.Logger

    def stored(self, index: int, num_tokens: int, size_bytes: int, request_s: float) -> None: ...

    def failed(self, index: int, num_tokens: int, check: str, reason: str) -> None: ...


@dataclass(frozen=True, eq=False)
class _Member:
    """An endpoint, and what it has of the job."""

    endpoint: Endpoint
    load: Load


class Extractor:
    """Extracts samples with the servers of one host.

    Args:
        samples: all of the job, read as they are wanted.
    """

    def __init__(
        self,
        parameters: ExtractionParameters,
        endpoints: Sequence[Endpoint],
        writer: StoreWriter,
        reporter: Reporter,
        samples: Iterable[Sample],
    ) -> None:
        self._parameters, self._writer, self._reporter = parameters, writer, reporter
        self._members = [
            _Member(endpoint, Load(endpoint.most_bytes, endpoint.most_requests))
            for endpoint in endpoints
        ]
        state_bytes = writer.manifest.state_bytes_per_token
        most_bytes = min(member.load.most_bytes for member in self._members)
        self._scheduler = Scheduler(
            samples,
            most_samples=min(e.samples_per_request for e in endpoints),
            most_tokens=min(
                parameters.tokens_per_request, most_bytes // dump_bytes(1, 0, state_bytes)
            ),
            state_bytes=state_bytes,
            most_losses=parameters.max_attempts,
        )
        # a killed run's requests may still be in the server: ids must not repeat between runs
        self._numbers = itertools.count(secrets.randbelow(_RUNS) * 1000)
        # a thread for each request that waits or is stored, and one that waits for the server
        self._tasks = Tasks(sum(requests_at_once(m.load.most_requests) + 1 for m in self._members))
        self._in_a_row = 0  # failed samples since the last stored one
        self._looked_at = time.monotonic()
        self._fatal: BaseException | None = None
        self._stopping, self._aborted = threading.Event(), threading.Event()
        self._is_closed = False

    def close(self) -> None:
        """Send nothing more, and end when what is in flight is stored; from any thread."""
        self._is_closed = True
        self._stopping.set()
        self._tasks.wake()

    def run(self, interrupts: Interrupts | None = None) -> bool:
        """Work until every sample has its outcome; False when it was closed or interrupted before.

        A second interrupt abandons what is in flight and is raised.

        Args:
            interrupts: of the process, if this is to heed them.

        Raises:
            HslibError, OSError: what no sample could survive; in-flight work is finished first.
        """
        interrupts = interrupts or Interrupts()
        interrupts.notify = self._tasks.wake
        try:
            self._work(interrupts)
        finally:
            self._tasks.shutdown(wait=not self._aborted.is_set())
        if self._fatal is not None:
            raise self._fatal
        return not self._is_closed

    def _work(self, interrupts: Interrupts) -> None:
        while True:
            if interrupts.is_urgent:
                self._aborted.set()
                raise KeyboardInterrupt
            if interrupts.count and not self._is_closed:
                self.close()
                self._reporter.log.warning("interrupted: finishing what is in flight")
            if not self._stopping.is_set():
                self._send_all()
            due_s = self._scheduler.wait_s(time.monotonic())
            if not self._tasks and (self._stopping.is_set() or due_s is None):
                return
            # what is due already waits for a server, and not for the clock
            self._take(min(due_s or _LOOK_EVERY_S, _LOOK_EVERY_S))

    def _take(self, timeout_s: float) -> None:
        """Go on with what has ended, and look at the dump directories now and then."""
        try:
            self._tasks.take(timeout_s)
            if time.monotonic() - self._looked_at > _LOOK_EVERY_S:
                self._look()
        except Exception as error:
            self._stop(error)

    def _stop(self, error: BaseException) -> None:
        """No sample can succeed any more: finish what is in flight, and raise ``error``."""
        self._fatal = self._fatal or error
        self._stopping.set()

    def _send_all(self) -> None:
        """Give the endpoints what they may have, the least busy one first."""
        try:
            while True:
                for member in sorted(self._members, key=lambda member: member.load.in_flight):
                    group = self._scheduler.take(member.load, time.monotonic())
                    if group is not None:
                        self._send(member, group)
                        break
                else:
                    return
        except Exception as error:  # the dataset can't be read on
            self._stop(error)

    def _send(self, member: _Member, group: Group) -> None:
        """One request under new ids; what earlier tries of its samples left is cleared."""
        endpoint = member.endpoint
        old = [rid for pending in group for rid in pending.rids]
        for pending in group:
            pending.rids.append(request_id(pending.sample, next(self._numbers)))

        def send() -> _Answers:
            started = time.monotonic()
            endpoint.dumps.clear(old)
            answers = endpoint.send([p.sample for p in group], [p.rids[-1] for p in group])
            return answers, time.monotonic() - started

        self._tasks.submit(send, lambda future: self._sent(member, group, future))

    def _sent(self, member: _Member, group: Group, future: Future[_Answers]) -> None:
        """The server has done with a request: store its dumps, and look at its errors."""
        self._scheduler.answered(member.load)
        answers, latency_s = future.result()
        for answer in answers:
            if isinstance(answer, Exception) and reaction_to(answer) == "wait":
                self._await(member, answer)  # before it is sent anything more
        self._tasks.submit(
            lambda: self._store(member.endpoint, group, answers, latency_s),
            lambda stored: self._stored(member, group, stored),
        )

    def _store(
        self, endpoint: Endpoint, group: Group, answers: list[Answer], latency_s: float
    ) -> list[Entry | Exception]:
        """Validate, store, commit and remove each dump; in a worker."""
        outcomes: list[Entry | Exception] = []
        for pending, answer in zip(group, answers, strict=True):
            if not isinstance(answer, Dump):
                outcomes.append(answer)
                continue
            try:
                outcomes.append(self._store_one(endpoint, pending, answer, latency_s))
            except (HslibError, OSError) as error:
                outcomes.append(error)
        return outcomes

    def _store_one(
        self, endpoint: Endpoint, pending: PendingSample, dump: Dump, latency_s: float
    ) -> Entry:
        states_hash = endpoint.validate(dump, pending.sample)
        if self._aborted.is_set():
            raise JobError("aborted before the sample was stored", index=pending.sample.index)
        tries = len(pending.rids)
        entry = self._writer.put(pending.sample, *dump.captured(), states_hash, tries, latency_s)
        endpoint.dumps.clear([dump.name])
        return entry

    def _stored(
        self,
        member: _Member,
        group: Group,
        future: Future[list[Entry | Exception]],
    ) -> None:
        """A request is through: every sample of it has its outcome, or waits for another try."""
        self._scheduler.stored(member.load, group)
        for pending, outcome in zip(group, future.result(), strict=True):
            if isinstance(outcome, Entry):
                self._in_a_row = 0
                self._reporter.stored(
                    outcome.index, outcome.num_tokens, outcome.size_bytes, outcome.latency_s
                )
                if len(pending.rids) > 1:  # what its other tries left takes up room
                    member.endpoint.dumps.clear(pending.rids)
            else:
                try:
                    self._meet(member, pending, outcome, is_alone=len(group) == 1)
                except (HslibError, OSError) as error:  # others of the group may be stored
                    self._stop(error)

    def _meet(
        self,
        member: _Member,
        pending: PendingSample,
        error: Exception,
        is_alone: bool,
    ) -> None:
        """React to the error of a sample's try."""
        reaction = reaction_to(error)
        index = pending.sample.index
        pending.errors += reaction == "retry" and is_alone
        if reaction == "stop":
            self._stop(error)
        elif reaction == "wait":
            self._reporter.log.warning("[%d] no answer: %s", index, error)
            self._lose(member, pending, error)
            self._await(member, error)
        elif reaction == "fail" and isinstance(error, RequestError) and not is_alone:
            self._scheduler.put_back(pending)  # a refusal of several does not say which is meant
        elif reaction == "retry" and pending.errors < self._parameters.max_attempts:
            # in company nothing is counted: the error may be another row's
            self._reporter.log.warning("[%d] try %d: %s", index, len(pending.rids), error)
            self._scheduler.put_off(pending, time.monotonic() + pause_s(max(1, pending.errors)))
        else:
            self._fail(member, pending, error)

    def _lose(self, member: _Member, pending: PendingSample, error: Exception) -> None:
        """A sample's server went away; the sample is to blame if that happens time and again."""
        fields = error.fields if isinstance(error, HslibError) else {}
        if fields.keys() & {"dump_dir_gone", "restarted"}:  # that was no row's doing
            self._scheduler.put_back(pending)
        elif not self._scheduler.lose(pending):
            self._fail(member, pending, error)

    def _fail(self, member: _Member, pending: PendingSample, error: Exception) -> None:
        """Record a sample as failed.

        Raises:
            JobError: too many in a row were.
        """
        sample, reason = pending.sample, str(error)
        check = error.fields.get("check") if isinstance(error, HslibError) else None
        member.endpoint.dumps.clear(pending.rids)
        self._writer.record(_failure(sample, reason, len(pending.rids)))
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

    def _look(self) -> None:
        """Notice a dump directory that somebody removed, before its server answers."""
        self._looked_at = time.monotonic()
        for member in self._members:
            try:
                if not member.load.is_away:
                    member.endpoint.require_dump_dir()
            except RequestError as error:
                self._await(member, error)

    def _await(self, member: _Member, error: Exception) -> None:
        """Send an endpoint nothing until its server is back, or has been started again."""
        if not member.load.is_away:
            member.load.is_away = True
            self._reporter.log.error("waiting for the server: %s", error)
            self._tasks.submit(
                lambda: member.endpoint.await_return(error, self._stopping),
                lambda future: self._returned(member, future),
            )

    def _returned(self, member: _Member, future: Future[None]) -> None:
        """An endpoint is back, or is given up if others work.

        Raises:
            HslibError: it was the last one.
        """
        error = future.exception()
        if error is None:
            member.load.is_away = False
            self._reporter.log.info("the server at %s is back", member.endpoint.url)
        elif not self._is_closed:
            member.load.is_over = True
            others = sum(not other.load.is_over for other in self._members)
            if others:
                self._reporter.log.error("going on with %d other server(s): %s", others, error)
            elif not self._has_no_more():
                raise error

    def _has_no_more(self) -> bool:
        """Whether every sample has its outcome; the job needs no server then."""
        return not self._tasks and self._scheduler.is_empty()


def pause_s(tries: int) -> float:
    """Seconds before a sample's next try: longer each time, and not all at the same moment."""
    return min(_MOST_PAUSE_S, _PAUSE_S * 2.0 ** (tries - 1)) + random.random()


def _failure(sample: Sample, reason: str, attempts: int) -> Entry:
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
