"""A job before and after it runs: what it would do, whether it may, and how it ended."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hslib.dataset import (
    Dataset,
    Limits,
    Rejection,
    RowInfo,
    Sample,
    Survey,
    count_reasons,
    is_inverted,
)
from hslib.errors import DatasetError, JobError, ServerError
from hslib.job.inputs import dataset_of
from hslib.job.plan import (
    JobPlan,
    Outcomes,
    count_outcomes,
    in_shard,
    plan_job,
    require_few_rejections,
    require_masks,
    require_room,
    require_unchanged,
)
from hslib.model import ModelInfo, choose_layers, layers_source, placeholder_ids, read_model
from hslib.parameters import ExtractionParameters
from hslib.server import Servers
from hslib.store import (
    Entry,
    JournalState,
    Manifest,
    Store,
    StoreWriter,
    find_store,
    open_storage,
    require_same_kind,
)


@dataclass(frozen=True)
class Job:
    """A planned extraction; nothing has been sent yet."""

    parameters: ExtractionParameters
    dataset: Dataset
    survey: Survey
    plan: JobPlan
    manifest: Manifest
    stored_before: frozenset[int]  # indices in the store when the job was planned
    layers_source: dict[str, str] = field(default_factory=dict)  # the draft that named them

    def samples(self) -> Iterator[Sample]:
        """The rows to extract, in dataset order, read as they are wanted.

        Raises:
            DatasetError: a row is not the one that was planned.
        """
        wanted = {row.index: row for row in self.plan.todo}
        for row in self.dataset:
            planned = wanted.pop(row.index, None)
            if planned is None:
                continue
            if isinstance(row, Rejection) or not is_planned(planned, row):
                raise self._changed(f"row {row.index} changed")
            yield row
        if wanted:
            raise self._changed(f"{len(wanted)} rows went, the first of them row {min(wanted)},")

    def _changed(self, what: str) -> DatasetError:
        return DatasetError(
            f"{what} while the job ran",
            path=str(self.dataset.source),
            fix="leave the dataset as it is until the job has ended; run again to resume",
        )

    def facts(self) -> dict[str, str]:
        """What will happen, for a table."""
        plan, survey = self.plan, self.survey
        about = "about " if self.manifest.encoding == "lossless" else ""
        return {
            "rows asked for": f"{plan.num_rows:,} of {survey.num_rows:,}",
            "to extract": f"{len(plan.todo):,} rows, {plan.todo_tokens:,} tokens",
            "already done": f"{len(plan.done):,}",
            "failed before, not retried": f"{len(plan.failed_before):,}",
            "rejected": _with_reasons(len(plan.rejections), plan.rejections),
            "longest row": f"{plan.longest:,} tokens",
            "boundaries": self.manifest.states_sentence(),
            **self.layers_source,
            "states": self.manifest.witness_sentence(),
            "encoding": self.manifest.encoding_sentence(),
            "bytes per token": f"{plan.stored_bytes_per_token:,.0f}",
            "store grows by": f"{about}{plan.todo_bytes / 1e9:,.3f} GB "
            f"(from the first 100 rows: {plan.estimated_bytes(100) / 1e9:,.3f} GB)",
            "rows with a mask of zeros": f"{survey.zero_masks:,}",
            "masks are from": _mask_sentence(survey),
        } | self._unrecorded()

    def _unrecorded(self) -> dict[str, str]:
        if self.manifest.canary is not None:
            return {}
        return {
            "WHICH MODEL": "the store was begun before weights and canary were recorded: "
            "whether its rows are of the model served now can't be checked"
        }


@dataclass(frozen=True)
class Result:
    """How a run ended, counted from the journal."""

    totals: Outcomes
    interrupted: bool
    failed: dict[int, str]  # index -> reason
    rejections: tuple[Rejection, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Every row asked for is in the store, but for rejected ones."""
        return self.totals.reconciles and not self.totals.failed

    def require_whole(self) -> None:
        """Raises :class:`JobError` when rows failed or have no outcome, so that papermill fails."""
        if not self.is_whole:
            raise JobError(
                self.sentence(),
                failed=dict(list(self.failed.items())[:5]),
                fix="read the reasons; run again with retry_failed = True to try these rows again",
            )

    def metrics(self) -> dict[str, int]:
        """The totals, for ``metrics.json`` and a table."""
        t = self.totals
        return {
            "asked": t.asked,
            "ok": t.ok,
            "already_done": t.already_done,
            "failed": t.failed,
            "rejected": t.rejected,
            "unfinished": t.unfinished,
        }

    def failures(self) -> dict[str, int]:
        """How many rows failed for each reason (its first line)."""
        return dict(Counter(reason.splitlines()[0][:120] for reason in self.failed.values()))

    def sentence(self) -> str:
        """The verdict in words."""
        t = self.totals
        done = t.ok + t.already_done
        text = (
            f"{done} of {t.asked} rows are in the store ({t.ok} extracted now, {t.already_done} "
            f"before); {t.failed} failed, {_with_reasons(t.rejected, self.rejections)} rejected."
        )
        if t.unfinished:
            why = "the job was interrupted" if self.interrupted else "THE TOTALS DO NOT ADD UP"
            text += f" {t.unfinished} rows have no outcome: {why}. Run again to resume."
        return text


def _with_reasons(count: int, rejections: Iterable[Rejection]) -> str:
    reasons = count_reasons(rejections)
    return f"{count:,} ({reasons})" if reasons else f"{count:,}"


def _mask_sentence(survey: Survey) -> str:
    return "; ".join(
        f"{name}: {count:,} rows" + (" (1 = the prompt, not trained)" if is_inverted(name) else "")
        if name
        else f"NO MASK: {count:,} rows, every token trains"
        for name, count in sorted(survey.mask_columns.items())
    )


def prepare(parameters: ExtractionParameters, servers: Servers) -> Job:
    """Read the dataset, compare with the store, and refuse what can't come out right.

    Only reads: the store, its manifest and the lines of rejected rows are written by ``run``.

    Raises:
        DatasetError, StoreError, JobError, ServerError: with the cure.
    """
    model = _model_of(parameters, servers)
    dataset = dataset_of(parameters, _limits(parameters, servers, model))
    survey = dataset.survey()
    require_few_rejections(survey, parameters.max_rejected_share, parameters.strict)
    require_masks(survey, parameters.max_zero_mask_share)
    manifest = make_manifest(parameters, servers, model, survey)
    store = find_store(parameters.store_path)
    if store is not None:
        require_same_kind(store.manifest, manifest, str(parameters.store_path))
        manifest = store.manifest.model_copy(update={"encoding": parameters.encoding})
    plan = plan_job(
        survey,
        store.journal_state if store else JournalState(),
        _unsound(store, parameters.resume_check) if store else (),
        shard=(parameters.shard_index, parameters.num_shards),
        retry_failed=parameters.retry_failed,
        state_bytes_per_token=manifest.state_bytes_per_token,
        stored_bytes_per_token=manifest.stored_bytes_per_token,
    )
    stored = store.entries if store else {}
    if parameters.on_changed_rows == "refuse":
        require_unchanged(
            plan,
            stored,
            survey,
            store=str(parameters.store_path),
            dataset=parameters.dataset_source,
        )
    require_room(
        plan,
        store_free=open_storage(parameters.store_path).free_bytes(),
        dump_free=servers.dump_room_bytes(),
        num_shards=parameters.num_shards,
    )
    source = layers_source(parameters.layers, model)
    return Job(parameters, dataset, survey, plan, manifest, frozenset(stored), source)


def _limits(parameters: ExtractionParameters, servers: Servers, model: ModelInfo) -> Limits:
    server_limit = servers.longest_row
    if parameters.max_tokens > server_limit:
        raise JobError(
            f"max_tokens = {parameters.max_tokens}, but the server takes at most {server_limit}",
            fix="start the server with a larger context_length, or lower max_tokens",
        )
    longest = parameters.max_tokens or server_limit
    return Limits(servers.check.plugin.vocab_size, longest, placeholder_ids(model.path))


def _model_of(parameters: ExtractionParameters, servers: Servers) -> ModelInfo:
    """The model folder that the parameters name; refused when the server serves another."""
    plugin = servers.check.plugin
    served_elsewhere = bool(parameters.server_urls) and not parameters.model_path
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
    if plugin.unwitnessed and not parameters.accept_unwitnessed:
        raise ServerError(
            "the server captures states that no layer's reading confirms: "
            f"{plugin.witness_sentence()}",
            fix="set accept_unwitnessed = True to store them, marked as such",
        )
    if plugin.stores_final != parameters.store_final:
        raise ServerError(
            "the server " + ("captures" if plugin.stores_final else "leaves out") + " the final "
            f"state, and store_final is {parameters.store_final}",
            fix=f"set store_final = {plugin.stores_final}, or start the server anew",
        )
    wanted = choose_layers(parameters.layers, model)
    if wanted != plugin.boundaries:
        raise ServerError(
            "the server captures other layers than the job asks for",
            expected=wanted,
            got=plugin.boundaries,
            fix=f'set layers = "{",".join(map(str, plugin.boundaries)) or "none"}", or start the '
            "server anew",
        )
    return model


def make_manifest(
    parameters: ExtractionParameters, servers: Servers, model: ModelInfo, survey: Survey
) -> Manifest:
    """What all samples of this job have in common."""
    plugin, settings = servers.check.plugin, servers.check.settings
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
        dataset_path=parameters.dataset_source,
        dataset_digest=survey.digest,
        sglang_version=plugin.sglang_version,
        plugin_version=plugin.plugin_version,
        server=settings.model_dump(exclude={"model_path", "version"}),
        encoding=parameters.encoding,
        final_norm="post" if plugin.stores_final else "none",
        unwitnessed=plugin.unwitnessed,
        weights=plugin.weights,
        canary=servers.check.canary,
        accepted_missing=plugin.accepted_missing,
    )


def _unsound(store: Store, resume_check: Literal["size", "deep"]) -> list[int]:
    return [fault.index for fault in store.verify(deep=resume_check == "deep").faults]


def is_planned(planned: RowInfo, row: Sample) -> bool:
    """Whether a row that is read now is the one that was planned."""
    now = (row.id, row.num_tokens, row.digest, row.mask_digest)
    return now == (planned.id, planned.num_tokens, planned.digest, planned.mask_digest)


def record_plan(job: Job, writer: StoreWriter) -> None:
    """Record new rejections, and take back the lines of rows that are extracted again.

    Raises:
        JobError: the store has changed since the job was planned.
    """
    state = Store(job.parameters.store_path).journal_state
    shard = (job.parameters.shard_index, job.parameters.num_shards)
    changed = job.stored_before.symmetric_difference(state.stored)
    if any(in_shard(index, *shard) for index in changed):  # other shards' jobs go on meanwhile
        raise JobError(
            "the store has changed since this job was planned; nothing was sent",
            fix="plan it anew: run extract.prepare again, then extract.run",
        )
    for rejection in job.plan.rejections:
        reason = f"{rejection.reason}: {rejection.detail}"
        known = state.rejected.get(rejection.index)
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
    for index in {row.index for row in job.plan.todo} | set(job.plan.changed):
        if index in state.stored:
            writer.revoke(
                state.stored[index], "its file failed the resume check, or its row changed"
            )


def result_of(job: Job, interrupted: bool) -> Result:
    """How the job stands, read back from the journal."""
    state = Store(job.parameters.store_path).journal_state
    asked = {row.index for row in job.plan.todo} | set(job.plan.failed_before)
    failed = {i: entry.reason for i, entry in state.failed.items() if i in asked}
    return Result(count_outcomes(job.plan, state), interrupted, failed, job.plan.rejections)
