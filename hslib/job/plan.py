"""What a job has to do: rows already done, rows to send, rows that changed. Pure decisions.

Nothing here reads a file or a clock; :mod:`hslib.extract` brings the facts and acts.
"""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hslib.dataset import Rejection, RowInfo, Survey, count_reasons, first_of_each
from hslib.errors import DatasetError, JobError
from hslib.files import PAGE
from hslib.store import Entry, JournalState, stored_bytes

_LISTED = 20  # indices in an error
_MOVED, _OTHER = "moved to another index", "have other input_ids"
_MASK, _GONE = "have another loss_mask or id", "are rejected or gone"
_CHANGES = (_MOVED, _OTHER, _MASK, _GONE)  # in the order in which they are said
# beside the samples' files, rounded up
_SMALL_FILES_BYTES, _JOURNAL_LINE_BYTES = 1 << 16, 2048


@dataclass(frozen=True)
class JobPlan:
    """The rows of this shard, sorted by what happens to them. Every row is in one list."""

    todo: tuple[RowInfo, ...]
    done: tuple[int, ...]  # stored earlier, and sound as far as checked
    failed_before: tuple[int, ...]  # failed in an earlier run and not asked to be retried
    rejections: tuple[Rejection, ...]
    changed: tuple[int, ...]  # stored earlier from other ids or another mask; also in todo
    state_bytes_per_token: int  # of a dump
    stored_bytes_per_token: float  # of a sample's file: its states as they are encoded

    @property
    def num_rows(self) -> int:
        """Rows asked for."""
        return len(self.todo) + len(self.done) + len(self.failed_before) + len(self.rejections)

    @property
    def todo_tokens(self) -> int:
        return sum(row.num_tokens for row in self.todo)

    @property
    def todo_bytes(self) -> int:
        """Bytes that the store will grow by: exact to the files' headers, or what is expected of
        a lossless encoding."""
        size = self.stored_bytes_per_token
        return sum(stored_bytes(row.num_tokens, 1, size) for row in self.todo)

    def estimated_bytes(self, sample_size: int = 100) -> int:
        """``todo_bytes`` extrapolated from the first rows only, as one would without lengths."""
        first = self.todo[:sample_size]
        if not first:
            return 0
        part = sum(row.num_tokens for row in first) * len(self.todo) / len(first)
        return stored_bytes(part, len(self.todo), self.stored_bytes_per_token)

    @property
    def longest(self) -> int:
        """Tokens of the longest row to send."""
        return max((row.num_tokens for row in self.todo), default=0)


def in_shard(index: int, shard_index: int, num_shards: int) -> bool:
    """Each row belongs to exactly one shard, whatever its neighbours are."""
    return index % num_shards == shard_index


def plan_job(
    survey: Survey,
    state: JournalState,
    unsound: Iterable[int],
    *,
    shard: tuple[int, int],
    retry_failed: bool,
    state_bytes_per_token: int,
    stored_bytes_per_token: float,
) -> JobPlan:
    """Sort a shard's rows.

    Args:
        unsound: stored indices whose files did not pass ``resume_check``.
        shard: ``(shard_index, num_shards)``.
    """
    bad = set(unsound)
    todo: list[RowInfo] = []
    known = {row.index for row in survey.rows}
    done: list[int] = []
    failed: list[int] = []
    changed: list[int] = []
    for row in survey.rows:
        if not in_shard(row.index, *shard):
            continue
        stored = state.stored.get(row.index)
        if stored is not None and not is_same_row(stored, row):
            changed.append(row.index)
            todo.append(row)
        elif stored is not None and row.index not in bad:
            done.append(row.index)
        elif stored is None and _failed_the_same_row(state, row) and not retry_failed:
            failed.append(row.index)
        else:
            todo.append(row)
    rejections = tuple(r for r in survey.rejections if in_shard(r.index, *shard))
    # stored rows that are no good rows any more: rejected now, or not in the dataset at all
    changed += [
        i for i in state.stored if in_shard(i, *shard) and i not in known and i < survey.end
    ]
    return JobPlan(
        tuple(todo),
        tuple(done),
        tuple(failed),
        rejections,
        tuple(changed),
        state_bytes_per_token,
        stored_bytes_per_token,
    )


def is_same_row(entry: Entry, row: RowInfo) -> bool:
    """Whether a journal line speaks of the row that is at its index now."""
    same_mask = entry.mask_digest in ("", row.mask_digest)
    return entry.digest == row.digest and entry.id == row.id and same_mask


def _failed_the_same_row(state: JournalState, row: RowInfo) -> bool:
    failed = state.failed.get(row.index)
    return failed is not None and failed.digest == row.digest


def require_unchanged(
    plan: JobPlan, stored: Mapping[int, Entry], survey: Survey, *, store: str, dataset: str
) -> None:
    """Refuse rows that differ from what the store holds under their index.

    Args:
        store, dataset: where they are, for the command that shows what differs.

    Raises:
        DatasetError: with the first indices, and how many rows moved, have other ids, another
            mask or id, or are no rows any more: each row counts once.
    """
    if not plan.changed:
        return
    changes = _changes(plan, stored, survey)
    counts = Counter(changes.values())
    why = f" ({rejections_sentence(survey)})" if counts[_GONE] and survey.rejections else ""
    cut = f"; the first {_LISTED} are listed" if len(plan.changed) > _LISTED else ""
    words = ", ".join(f"{counts[name]} {name}" for name in _CHANGES if counts[name])
    fix = (
        "give the dataset that the store was made from (appending rows is fine), another "
        "store_dir, or on_changed_rows = 'redo' to extract these rows again"
    )
    if set(counts) != {_MASK}:
        command = f"python -m hslib diagnose {shlex.quote(store)} --dataset {shlex.quote(dataset)}"
        fix = f"run `{command}` to see what differs; then {fix}"
    if counts[_MASK] or any(r.reason == "padded" for r in survey.rejections if r.index in changes):
        fix += "; stores of before December 2026 had masks from loss_mask alone, and took padded "
        fix += "rows"
    raise DatasetError(
        f"{len(plan.changed)} stored rows are not the rows that the dataset has there now: "
        f"{words}{why}{cut}",
        indices=list(plan.changed[:_LISTED]),
        fix=fix,
    )


def _changes(plan: JobPlan, stored: Mapping[int, Entry], survey: Survey) -> dict[int, str]:
    """What became of each changed row; ids that are elsewhere now have moved."""
    wanted = {row.index: row for row in survey.rows}
    now = {row.digest for row in survey.rows}
    found = {}
    for index in plan.changed:
        row, digest = wanted.get(index), stored[index].digest
        if row is not None and row.digest == digest:
            found[index] = _MASK
        elif digest in now:
            found[index] = _MOVED
        else:
            found[index] = _GONE if row is None else _OTHER
    return found


def require_masks(survey: Survey, max_share: float) -> None:
    """Raises :class:`DatasetError` when too many rows would train nothing."""
    if survey.rows and survey.zero_masks / len(survey.rows) > max_share:
        raise DatasetError(
            f"{survey.zero_masks} of {len(survey.rows)} rows have a mask of zeros only: "
            "nothing of them would train",
            fix="correct the masks, or raise max_zero_mask_share if that is meant",
        )


def require_few_rejections(survey: Survey, max_share: float, strict: bool) -> None:
    """Refuse a dataset of which too many rows are rejected.

    Args:
        max_share: of all rows.
        strict: refuse any.

    Raises:
        DatasetError: with the reasons counted, and of each the first row and its cure.
    """
    count, total = len(survey.rejections), survey.num_rows
    if not count or (survey.rows and not strict and count <= max_share * total):
        return
    why = "strict is set" if strict else f"max_rejected_share is {max_share:g}"
    raise DatasetError(
        f"{count} of {total} rows are rejected, and "
        f"{why if survey.rows else 'none is left'}: {rejections_sentence(survey)}",
        fix=rejections_cure(survey),
        indices=[rejection.index for rejection in survey.rejections[:20]],
    )


def rejections_sentence(survey: Survey) -> str:
    """The reasons counted, and the first row of each."""
    rows = (
        f"row {one.index}{f' ({one.where})' if one.where else ''}, {one.reason}: {one.detail}"
        for one in first_of_each(survey.rejections)
    )
    return f"{count_reasons(survey.rejections)}; the first: {'; '.join(rows)}"


def rejections_cure(survey: Survey) -> str:
    """What to do; of several reasons, for each."""
    first = first_of_each(survey.rejections)
    if len(first) == 1:
        return first[0].fix
    return "; ".join(f"{one.reason}: {one.fix}" for one in first)


def require_room(plan: JobPlan, *, store_free: int | None, dump_free: int, num_shards: int) -> None:
    """Refuse a job that can't fit, and say what would.

    Args:
        store_free: None for an object store, which has no such bound.

    Raises:
        JobError: on the store's or the dump directory's file system.
    """
    if store_free is not None and plan.todo_bytes > store_free:
        raise JobError(
            f"the store would grow by {plan.todo_bytes / 1e9:.2f} GB, its disk has "
            f"{store_free / 1e9:.2f} GB free",
            fix=f"free space there, or name another disk{_what_fits(plan, store_free, num_shards)}",
        )
    longest = plan.longest * plan.state_bytes_per_token
    if longest > dump_free:
        raise JobError(
            f"the longest row ({plan.longest} tokens) needs {longest / 1e9:.3f} GB, the dump "
            f"directory has {dump_free / 1e9:.3f} GB free",
            fix="a larger tmpfs or another dump_dir, or max_tokens to leave such rows out",
        )


def _what_fits(plan: JobPlan, free: int, num_shards: int) -> str:
    """A ``limit`` with which the job fits, and how many disks take all of it; "" for a full one."""
    used = _SMALL_FILES_BYTES
    for row in plan.todo:
        size = stored_bytes(row.num_tokens, 1, plan.stored_bytes_per_token) + _JOURNAL_LINE_BYTES
        used += -(-size // PAGE) * PAGE  # a file system gives whole blocks
        if used > free:
            break
    if row.index == plan.todo[0].index:
        return ""
    disks = num_shards * -(-plan.todo_bytes // max(1, free))
    return f", or set limit = {row.index} rows, or spread num_shards = {disks} over several disks"


@dataclass(frozen=True)
class Outcomes:
    """The outcome of every row asked for."""

    asked: int
    ok: int = 0
    already_done: int = 0
    failed: int = 0
    rejected: int = 0

    @property
    def unfinished(self) -> int:
        """Rows without an outcome: an interrupt, or a defect of this kit."""
        return self.asked - self.ok - self.already_done - self.failed - self.rejected

    @property
    def reconciles(self) -> bool:
        return self.unfinished == 0


def count_outcomes(plan: JobPlan, state: JournalState) -> Outcomes:
    """Totals from the journal as it stands after a run, not from the run's own counters."""
    done = sum(index in state.stored for index in plan.done)
    ok = failed = 0
    for row in plan.todo:
        entry = state.stored.get(row.index)
        if entry is not None and is_same_row(entry, row):
            ok += 1
        elif _failed_the_same_row(state, row):
            failed += 1
    return Outcomes(
        asked=plan.num_rows,
        ok=ok,
        already_done=done,
        failed=failed + len(plan.failed_before),
        rejected=len(plan.rejections),
    )
