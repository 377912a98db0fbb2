"""The job: rows -> requests -> validated dumps -> store, in parallel, resumable.

Threads share three things: a feed that packs rows into requests in order and within the
byte budget, the store's writer, and the progress. What an outcome means is decided by
:func:`verdict`, a function of values.
"""

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tenacity

from hslib.config import ExtractionParameters
from hslib.dataset import Dataset, Limits, Rejection, Sample, Survey
from hslib.dump import DumpDir, request_id, validate
from hslib.errors import DatasetError, DumpError, HslibError, JobError, RequestError, ServerError
from hslib.journal import Entry, Ledger
from hslib.layers import parse_layers
from hslib.lock import Lock
from hslib.manifest import Manifest
from hslib.model import ModelInfo, read_model
from hslib.plan import (
    JobPlan,
    Totals,
    count_outcomes,
    pack,
    plan_job,
    require_masks,
    require_room,
    require_unchanged,
)
from hslib.progress import Progress
from hslib.serving import Serving
from hslib.store import Store, StoreWriter

_BUDGET_SHARE = 0.8  # of what the dump directory has free; the rest is small files and others


@dataclass(frozen=True)
class Job:
    """A planned extraction; nothing has been sent yet."""

    parameters: ExtractionParameters
    dataset: Dataset
    survey: Survey
    plan: JobPlan
    manifest: Manifest
    stored_before: int

    def facts(self) -> dict[str, str]:
        """What will happen, for a table."""
        plan, survey = self.plan, self.survey
        return {
            "rows asked for": f"{plan.num_rows:,} of {survey.num_rows:,}",
            "to extract": f"{len(plan.todo):,} rows, {plan.todo_tokens:,} tokens",
            "already done": f"{len(plan.done):,}",
            "failed before, not retried": f"{len(plan.failed_before):,}",
            "rejected": f"{len(plan.rejections):,}",
            "longest row": f"{plan.longest:,} tokens",
            "boundaries": ", ".join(map(str, self.manifest.boundaries)) + ", final (post-norm)",
            "bytes a token": f"{plan.state_bytes_per_token:,}",
            "store grows by": f"{plan.todo_bytes / 1e9:,.3f} GB",
            "rows with a mask of zeros": f"{survey.zero_masks:,}",
            "rows without loss_mask (taken as ones)": f"{survey.missing_masks:,}",
        }


@dataclass(frozen=True)
class Result:
    """How a run ended, counted from the journal."""

    totals: Totals
    interrupted: bool
    failed: dict[int, str]  # index -> reason

    @property
    def is_whole(self) -> bool:
        """Every row asked for is in the store, but for rejected ones."""
        return self.totals.reconciles and not self.totals.failed

    def sentence(self) -> str:
        """The verdict in words."""
        t = self.totals
        done = t.ok + t.already_done
        text = (
            f"{done} of {t.asked} rows are in the store ({t.ok} extracted now, {t.already_done} "
            f"before); {t.failed} failed, {t.rejected} rejected."
        )
        if t.unfinished:
            why = "the job was interrupted" if self.interrupted else "THE TOTALS DO NOT RECONCILE"
            text += f" {t.unfinished} rows have no outcome: {why}. Run again to resume."
        return text


def prepare(parameters: ExtractionParameters, serving: Serving) -> Job:
    """Read the dataset, compare with the store, and refuse what can't come out right.

    Creates the store and its manifest when they are not there; records rejected rows.

    Raises:
        DatasetError, StoreError, JobError, ServerError: with the cure.
    """
    model = _model_of(parameters, serving)
    dataset = Dataset(parameters.dataset_file, _limits(parameters, serving), parameters.limit)
    survey = dataset.survey()
    require_masks(survey, parameters.max_zero_mask_share)
    if parameters.strict and survey.rejections:
        first = survey.rejections[0]
        raise DatasetError(
            f"{len(survey.rejections)} rows are rejected and strict is set; the first: row "
            f"{first.index}, {first.reason}: {first.detail}",
            fix=first.fix,
            indices=[r.index for r in survey.rejections[:20]],
        )
    manifest = make_manifest(parameters, serving, model, survey)
    with _writer(parameters, manifest):
        store = Store(parameters.store_path)
    unsound = _unsound(store, parameters.resume_check)
    plan = plan_job(
        survey,
        store.ledger,
        unsound,
        shard=(parameters.shard_index, parameters.num_shards),
        retry_failed=parameters.retry_failed,
        state_bytes_per_token=(len(manifest.boundaries) + 1) * manifest.hidden_size * 2,
    )
    if parameters.on_changed_rows == "refuse":
        require_unchanged(plan, store.entries, survey)
    require_room(
        plan,
        store_free=_free_bytes(parameters.store_path),
        dump_free=_free_bytes(serving.dump_path),
        num_shards=parameters.num_shards,
    )
    return Job(parameters, dataset, survey, plan, store.manifest, len(store))


def _writer(parameters: ExtractionParameters, manifest: Manifest) -> StoreWriter:
    return StoreWriter(
        parameters.store_path, manifest, parameters.shard_index, parameters.num_shards
    )


def _free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _limits(parameters: ExtractionParameters, serving: Serving) -> Limits:
    server_limit = serving.proof.settings.max_req_input_len
    if parameters.max_tokens > server_limit:
        raise JobError(
            f"max_tokens = {parameters.max_tokens}, but the server takes at most {server_limit}",
            fix="start the server with a larger context_length, or lower max_tokens",
        )
    return Limits(serving.proof.plugin.vocab_size, parameters.max_tokens or server_limit)


def _model_of(parameters: ExtractionParameters, serving: Serving) -> ModelInfo:
    """The model folder that the parameters name; refused when the server serves another."""
    plugin = serving.proof.plugin
    served_elsewhere = bool(parameters.server_url) and not parameters.model_path
    model = read_model(plugin.model_path if served_elsewhere else parameters.model_folder)
    for name in ("num_layers", "hidden_size", "vocab_size"):
        if getattr(model, name) != getattr(plugin, name):
            raise ServerError(
                f"the server serves another model than {model.path}: {name} differs",
                expected=getattr(model, name),
                got=getattr(plugin, name),
                fix=f"set model_path to what it serves ({plugin.model_path}), or start another",
            )
    served = Path(plugin.model_path) / "config.json"
    if served.is_file() and read_model(served.parent).config_hash != model.config_hash:
        raise ServerError(
            f"the server serves {plugin.model_path}, not {model.path}: config.json differs",
            fix="set model_path to what it serves, or start another server",
        )
    wanted = parse_layers(parameters.layers, model.num_layers)
    if wanted != plugin.boundaries:
        raise ServerError(
            "the server captures other layers than the job asks for",
            expected=wanted,
            got=plugin.boundaries,
            fix=f'set layers = "{",".join(map(str, plugin.boundaries))}", or start the server anew',
        )
    if parameters.scan_scope == "directory" and not plugin.dump_all:
        raise ServerError(
            'scan_scope = "directory" is for servers that name dumps themselves',
            fix='start it with dump_all = True, or use scan_scope = "request"',
        )
    return model


def make_manifest(
    parameters: ExtractionParameters, serving: Serving, model: ModelInfo, survey: Survey
) -> Manifest:
    """What all samples of this job have in common."""
    plugin, settings = serving.proof.plugin, serving.proof.settings
    return Manifest(
        boundaries=plugin.boundaries,
        hidden_size=plugin.hidden_size,
        num_layers=plugin.num_layers,
        vocab_size=plugin.vocab_size,
        dtype=plugin.dtype,
        model_class=plugin.model_class,
        model_path=str(model.path),
        model_config_hash=model.config_hash,
        tokenizer_digest=model.tokenizer_hash,
        dataset_path=str(parameters.dataset_file),
        dataset_digest=survey.digest,
        sglang_version=plugin.sglang_version,
        plugin_version=plugin.plugin_version,
        server=settings.model_dump(exclude={"model_path", "version"}),
    )


def _unsound(store: Store, resume_check: Literal["size", "deep"]) -> list[int]:
    return [fault.index for fault in store.verify(deep=resume_check == "deep").faults]


class Feed:
    """Hands out groups of samples in dataset order, within a byte budget.

    One lock around both, so a large sample waits its turn and nothing overtakes it.
    """

    def __init__(self, job: Job, budget_bytes: int) -> None:
        self._plan = job.plan
        self._wanted = {row.index: row for row in job.plan.todo}
        single = job.parameters.scan_scope == "directory"
        self._groups = pack(
            self._samples(job.dataset),
            1 if single else job.parameters.samples_per_request,
            job.parameters.tokens_per_request,
        )
        self._budget_bytes, self._held = budget_bytes, 0
        self._order, self._changed = threading.Lock(), threading.Condition()
        self._closed = False

    def _samples(self, dataset: Dataset) -> Iterator[Sample]:
        for row in dataset:
            if isinstance(row, Rejection) or row.index not in self._wanted:
                continue
            if row.digest != self._wanted[row.index].digest:
                raise DatasetError(
                    f"row {row.index} changed while the job ran", path=str(dataset.path)
                )
            yield row

    def next(self) -> list[Sample] | None:
        """The next group, when its bytes fit; None when there is none or the feed is closed."""
        with self._order:
            group = None if self._closed else next(self._groups, None)
            if group is None:
                return None
            size = self.size_bytes(group)
            with self._changed:
                # a group larger than the whole budget goes alone
                while self._held and self._held + size > self._budget_bytes and not self._closed:
                    self._changed.wait(1.0)
                if self._closed:
                    return None
                self._held += size
            return group

    def size_bytes(self, group: list[Sample]) -> int:
        """Bytes of dump directory that the group's states take."""
        return sum(sample.num_tokens for sample in group) * self._plan.state_bytes_per_token

    def release(self, group: list[Sample]) -> None:
        with self._changed:
            self._held -= self.size_bytes(group)
            self._changed.notify_all()

    def close(self) -> None:
        """Hand out nothing more; what is in flight goes on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


Verdict = Literal["retry", "fail", "wait", "stop"]


def verdict(error: Exception) -> Verdict:
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
                self._try_again(sample, errors[sample.index])

    def _try_again(self, sample: Sample, error: Exception) -> None:
        """Retry one sample with growing pauses; record it as failed when nothing helps."""
        attempts = 1
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self._parameters.max_attempts),
            wait=tenacity.wait_exponential_jitter(initial=0.2, max=10.0),
            reraise=True,
        )
        try:
            for attempt in retrying:
                with attempt:
                    number = attempt.retry_state.attempt_number
                    attempts = number
                    found = {sample.index: error} if number == 1 else self._try([sample], number)
                    if sample.index in found:
                        self._judge(sample, found[sample.index], number)
        except (RequestError, DumpError, _HopelessError) as last:
            cause = last.__cause__ if isinstance(last, _HopelessError) else last
            self._record_failure(sample, cause or last, attempts)

    def _judge(self, sample: Sample, error: Exception, attempt: int) -> None:
        """Raise what tenacity should do: the error to retry, something final, or a stop."""
        meaning = verdict(error)
        self._progress.log.warning("[%d] try %d: %s", sample.index, attempt, error)
        if meaning == "fail":
            raise _HopelessError from error
        if meaning == "wait" and not self._client.is_up():
            raise JobError(
                f"the server went away while sample {sample.index} was in flight: {error}",
                fix="see its log, start it again, and run the job again to resume",
            ) from error
        raise error

    def _try(self, group: list[Sample], attempt: int) -> dict[int, Exception]:
        """One request; the samples that did not come through, with their errors."""
        if self._parameters.scan_scope == "directory":
            return self._try_directory(group[0], attempt)
        started = time.monotonic()
        rids = [request_id(sample, attempt) for sample in group]
        for sample in group:
            self._dumps.clear(request_id(sample, earlier) for earlier in range(1, attempt + 1))
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
        self._progress.stored(sample.index, sample.num_tokens, entry.size_bytes, latency_s)

    def _record_failure(self, sample: Sample, error: BaseException, attempts: int) -> None:
        reason = str(error)
        check = error.fields.get("check") if isinstance(error, HslibError) else None
        self._writer.record(_failure(sample, reason, attempts))
        self._progress.failed(
            sample.index, sample.num_tokens, str(check or type(error).__name__), reason
        )


class _HopelessError(Exception):
    """A sample whose error no further try can mend; the cause is chained."""


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
        _writer(parameters, job.manifest) as writer,
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
    return _result(job, interrupted=not finished)


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


def _result(job: Job, interrupted: bool) -> Result:
    ledger = Store(job.parameters.store_path).ledger
    asked: set[int] = {row.index for row in job.plan.todo} | set(job.plan.failed_before)
    failed = {i: entry.reason for i, entry in ledger.failed.items() if i in asked}
    return Result(count_outcomes(job.plan, ledger), interrupted, failed)
