"""The loop: requests -> validated dumps -> store, in parallel, resumable.

Threads share three things: the feed, the store's writer and the progress. What an outcome
means is decided by :func:`verdict`, a function of values.
"""

import secrets
import threading
import time
from pathlib import Path
from typing import Literal

import tenacity

from hslib.dataset import Sample
from hslib.dump import DumpDir, request_id, validate
from hslib.errors import DumpError, HslibError, JobError, RequestError
from hslib.feed import Feed
from hslib.job import Job, Result, open_writer, prepare, result_of
from hslib.journal import Entry, Ledger
from hslib.lock import Lock
from hslib.progress import Progress
from hslib.serving import Serving
from hslib.store import Store, StoreWriter

__all__ = ["Job", "Result", "prepare", "run", "verdict"]

_TRIES_APART = 1000  # request ids of two runs differ by more than any number of tries
_BUDGET_SHARE = 0.8  # of what the dump directory has free; the rest is small files and others

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


class Extraction:
    """Runs one job. :func:`run` is the way in."""

    def __init__(self, job: Job, serving: Serving, writer: StoreWriter, progress: Progress) -> None:
        parameters = job.parameters
        self._job, self._parameters, self._serving = job, parameters, serving
        self._writer, self._progress = writer, progress
        self._dumps = DumpDir(serving.dump_path)
        self._expected = serving.proof.expected
        self._client = serving.client(parameters.request_timeout_s)
        free = int(self._dumps.free_bytes() * _BUDGET_SHARE)
        server_budget = serving.proof.plugin.budget_bytes or free
        self._feed = Feed(job, min(free, server_budget))
        self._fatal: BaseException | None = None
        self._aborted = threading.Event()
        self._asking = threading.Lock()
        # a killed run's requests may still be in the server: ids must not repeat between runs
        self._run_number = secrets.randbelow(10**7) * _TRIES_APART
        self._in_a_row = 0  # failed samples since the last stored one
        count = 1 if parameters.scan_scope == "directory" else parameters.concurrency
        self._threads = [
            threading.Thread(target=self._work, name=f"hslib-worker-{i}", daemon=True)
            for i in range(count)
        ]

    def run(self) -> bool:
        """Work until the feed is empty; False when an interrupt ended it early.

        A second interrupt abandons what is in flight and is raised.

        Raises:
            HslibError, OSError: what no sample could survive; in-flight work is finished first.
        """
        interrupted = False
        for thread in self._threads:
            thread.start()
        while any(thread.is_alive() for thread in self._threads):
            try:
                for thread in self._threads:
                    thread.join(0.1)
            except KeyboardInterrupt:
                if interrupted:
                    self._aborted.set()
                    raise
                interrupted = True
                self._feed.close()
                self._progress.log.warning("interrupted: finishing what is in flight")
        if self._fatal is not None:
            raise self._fatal
        return not interrupted

    def _work(self) -> None:
        try:
            while (group := self._feed.next()) is not None:
                try:
                    self._handle(group)
                finally:
                    self._feed.release(group)
        except BaseException as error:
            self._fatal = self._fatal or error
            self._feed.close()

    def _handle(self, group: list[Sample]) -> None:
        """One request for the group; whoever failed in it is tried again alone."""
        errors = self._try(group, attempt=1)
        for sample in group:
            if sample.index in errors:
                error = errors[sample.index]
                # a refusal of several samples does not say which of them is meant
                refused_together = len(group) > 1 and verdict(error) == "fail"
                self._try_again(sample, None if refused_together else error)

    def _try_again(self, sample: Sample, found: Exception | None) -> None:
        """Retry one sample with growing pauses; record it as failed when nothing helps.

        Args:
            found: the error of its first try; None to try alone before judging.
        """
        tries = 1
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self._parameters.max_attempts),
            wait=tenacity.wait_exponential_jitter(initial=0.2, max=10.0),
            retry=tenacity.retry_if_exception(lambda e: verdict(e) in ("retry", "wait")),
            reraise=True,
        )
        try:
            for attempt in retrying:
                with attempt:
                    while found is None or verdict(found) == "wait":
                        if found is not None:
                            self._await_server(found)
                        tries += 1
                        found = self._try([sample], tries).get(sample.index)
                        if found is None:
                            return
                    self._progress.log.warning("[%d] try %d: %s", sample.index, tries, found)
                    error, found = found, None
                    raise error
        except (RequestError, DumpError) as last:
            self._record_failure(sample, last, tries)

    def _await_server(self, error: Exception) -> None:
        """Return when a server that went away is back and is still the same one.

        One worker asks, the others wait for its answer.

        Raises:
            JobError: it does not come back in time, or died and nobody will start it again.
            ServerError: another model or other layers came back.
        """
        with self._asking:
            deadline = time.monotonic() + self._parameters.server_wait_s
            while not self._client.is_up():
                if self._feed.closed or not self._serving.may_return():
                    raise JobError(
                        f"the server is gone: {error}",
                        fix="see its log, start it again, and run the job again to resume",
                    ) from error
                if time.monotonic() > deadline:
                    raise JobError(
                        f"the server did not come back within {self._parameters.server_wait_s:g} s",
                        fix="start it again, and run the job again to resume",
                    ) from error
                time.sleep(0.5)
            self._serving.prove_again()

    def _try(self, group: list[Sample], attempt: int) -> dict[int, Exception]:
        """One request; the samples that did not come through, with their errors."""
        if self._parameters.scan_scope == "directory":
            return self._try_directory(group[0], attempt)
        started = time.monotonic()
        rids = [request_id(sample, self._run_number + attempt) for sample in group]
        for sample in group:
            tries = range(1, attempt + 1)
            self._dumps.clear(request_id(sample, self._run_number + number) for number in tries)
        try:
            self._client.prefill([sample.input_ids for sample in group], rids)
        except RequestError as error:
            return {sample.index: error for sample in group}
        errors: dict[int, Exception] = {}
        for sample, rid in zip(group, rids, strict=True):
            try:
                self._dumps.wait(rid, self._parameters.dump_timeout_s)
                self._deliver(sample, rid, attempt, started)
            except DumpError as error:
                errors[sample.index] = error
        return errors

    def _try_directory(self, sample: Sample, attempt: int) -> dict[int, Exception]:
        """Clear and scan: whatever appears after the request must be this sample's."""
        started = time.monotonic()
        self._dumps.clear(self._dumps.names())
        try:
            self._client.prefill([sample.input_ids])
            name = self._scan(sample)
            self._deliver(sample, name, attempt, started)
        except (RequestError, DumpError) as error:
            return {sample.index: error}
        return {}

    def _scan(self, sample: Sample) -> str:
        """The one dump that appeared.

        Raises:
            DumpError: none in time, or several, with what each of them holds.
        """
        deadline = time.monotonic() + self._parameters.dump_timeout_s
        while not (names := self._dumps.names()):
            if time.monotonic() > deadline:
                raise DumpError(
                    "no dump appeared after the request",
                    index=sample.index,
                    check="scan",
                    path=str(self._dumps.root),
                    fix="does this server dump into this directory?",
                )
            time.sleep(0.002)
        for name in names:
            self._dumps.wait(name, self._parameters.dump_timeout_s)
        names = self._dumps.names()
        if len(names) > 1:
            seen = {name: len(self._dumps.load(name).input_ids) for name in names}
            raise DumpError(
                f"{len(names)} dumps appeared after one request: somebody else uses this server",
                index=sample.index,
                check="scan",
                expected=f"one dump of {sample.num_tokens} tokens",
                got=seen,
                fix='keep other clients away, or use scan_scope = "request"',
            )
        return names[0]

    def _deliver(self, sample: Sample, name: str, attempt: int, started: float) -> None:
        """Validate, store, commit, remove the dump."""
        dump = self._dumps.load(name)
        states_hash = validate(dump, sample, self._expected)
        if self._aborted.is_set():
            raise JobError("aborted before sample was stored", index=sample.index)
        latency_s = time.monotonic() - started
        entry = self._writer.put(sample, dump, states_hash, attempt, latency_s)
        self._dumps.remove(name)
        self._in_a_row = 0
        self._progress.stored(sample.index, sample.num_tokens, entry.size_bytes, latency_s)

    def _record_failure(self, sample: Sample, error: BaseException, attempts: int) -> None:
        reason = str(error)
        check = error.fields.get("check") if isinstance(error, HslibError) else None
        self._writer.record(_failure(sample, reason, attempts))
        self._progress.failed(
            sample.index, sample.num_tokens, str(check or type(error).__name__), reason
        )
        self._in_a_row += 1
        if self._in_a_row >= self._parameters.max_failures_in_a_row:
            raise JobError(
                f"{self._in_a_row} samples in a row failed; the last: {reason}",
                index=sample.index,
                fix="remove the cause, then run again with retry_failed = True",
            )


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


def run(job: Job, serving: Serving) -> Result:
    """Extract what the plan says is to do; resumable at any point.

    Raises:
        HslibError, OSError: what stopped the job; everything committed before stays.
    """
    parameters, plan = job.parameters, job.plan
    with (
        Lock(serving.dump_path / ".lock", f"dump directory {serving.dump_path}"),
        open_writer(parameters, job.manifest) as writer,
    ):
        _settle_the_past(job, writer)
        _remove_leftovers(serving.dump_path, parameters.scan_scope)
        progress = Progress(
            parameters.run_path,
            asked=plan.num_rows,
            todo_tokens=plan.todo_tokens,
            already_done=len(plan.done),
            rejected=len(plan.rejections),
            failed_before=len(plan.failed_before),
            stored_before=job.stored_before,
        )
        with progress:
            progress.log.info("job: %s", job.facts())
            finished = True
            if plan.todo:
                finished = Extraction(job, serving, writer, progress).run()
            if not finished:
                progress.interrupted("stopped on request; run again to resume")
        _remove_leftovers(serving.dump_path, parameters.scan_scope)
    return result_of(job, interrupted=not finished)


def _settle_the_past(job: Job, writer: StoreWriter) -> None:
    """Record new rejections, and take back the lines of rows that are extracted again."""
    ledger: Ledger = Store(job.parameters.store_path).ledger
    for rejection in job.plan.rejections:
        reason = f"{rejection.reason}: {rejection.detail}"
        known = ledger.rejected.get(rejection.index)
        if known is None or known.reason != reason:
            writer.record(
                Entry(
                    index=rejection.index,
                    id=rejection.id,
                    status="rejected",
                    reason=reason,
                    finished_at=time.time(),
                )
            )
    for row in job.plan.todo:
        stale = ledger.stored.get(row.index)
        if stale is not None:
            writer.revoke(stale, "its file failed the resume check, or its row changed")


def _remove_leftovers(dump_path: Path, scan_scope: str) -> None:
    """Dumps of jobs that died, and late answers; the lock says that nobody else wants them."""
    dumps = DumpDir(dump_path)
    kit = [name for name in dumps.names() if name.startswith("hs-")]
    dumps.clear(dumps.names() if scan_scope == "directory" else kit)
