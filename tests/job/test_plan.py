"""What a job has to do: decisions of values, no files."""

import re
from dataclasses import replace

import pytest

from hslib.dataset import Rejection, RowInfo, Survey
from hslib.errors import DatasetError, JobError
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
from hslib.store import Entry, JournalState


def row(index: int, num_tokens: int = 10, digest: str = "") -> RowInfo:
    return RowInfo(index, f"r{index}", num_tokens, digest or f"d{index}", f"m{index}")


def survey(rows: list[RowInfo], rejected: tuple[int, ...] = (), zero_masks: int = 0) -> Survey:
    rejections = [Rejection(i, f"r{i}", "empty", "[]", "drop it") for i in rejected]
    return Survey(rows, rejections, len(rows) + len(rejections), zero_masks, {}, "digest", 10**9)


def entry(row: RowInfo, status: str = "ok") -> Entry:
    return Entry(
        index=row.index,
        id=row.id,
        status=status,  # type: ignore[arg-type]
        digest=row.digest,
        mask_digest=row.mask_digest,
    )


def journal_state(ok: list[Entry] | None = None, failed: list[Entry] | None = None) -> JournalState:
    return JournalState({e.index: e for e in ok or []}, {e.index: e for e in failed or []}, {})


def plan(
    rows: list[RowInfo],
    known: JournalState | None = None,
    unsound: tuple[int, ...] = (),
    shard: tuple[int, int] = (0, 1),
    retry_failed: bool = False,
    rejected: tuple[int, ...] = (),
) -> JobPlan:
    return plan_job(
        survey(rows, rejected),
        known or journal_state(),
        unsound,
        shard=shard,
        retry_failed=retry_failed,
        state_bytes_per_token=100,
        stored_bytes_per_token=100,
    )


def indices(rows: tuple[RowInfo, ...]) -> list[int]:
    return [row.index for row in rows]


def test_holes_are_filled_whatever_the_highest_stored_index_is() -> None:
    rows = [row(i) for i in range(5)]
    found = plan(rows, journal_state(ok=[entry(rows[4]), entry(rows[1])]))
    assert indices(found.todo) == [0, 2, 3]
    assert found.done == (1, 4)


def test_appended_rows_are_new_work() -> None:
    rows = [row(0), row(1)]
    known = journal_state(ok=[entry(rows[0])])
    assert indices(plan(rows, known).todo) == [1]


def test_a_row_with_an_unsound_file_is_done_again() -> None:
    rows = [row(0), row(1)]
    found = plan(rows, journal_state(ok=[entry(rows[0]), entry(rows[1])]), unsound=(1,))
    assert indices(found.todo) == [1]
    assert found.changed == ()


def test_failed_rows_are_retried_only_when_asked() -> None:
    rows = [row(0)]
    known = journal_state(failed=[entry(rows[0], "failed")])
    assert plan(rows, known).failed_before == (0,)
    assert indices(plan(rows, known, retry_failed=True).todo) == [0]


def test_a_failed_row_that_changed_since_is_new_work() -> None:
    known = journal_state(failed=[entry(row(0, digest="old"), "failed")])
    assert indices(plan([row(0)], known).todo) == [0]


PLACES = {"store": "a store", "dataset": "rows.jsonl"}


def test_moved_rows_are_refused_with_their_indices() -> None:
    before, after = (
        [row(0, digest="a"), row(1, digest="b")],
        [row(0, digest="b"), row(1, digest="a")],
    )
    known = journal_state(ok=[entry(replace(r)) for r in before])
    found = plan(after, known)
    with pytest.raises(DatasetError, match="2 moved to another index") as caught:
        require_unchanged(found, known.stored, survey(after), **PLACES)
    assert "python -m hslib diagnose 'a store' --dataset rows.jsonl" in caught.value.fix
    assert "December" not in caught.value.fix
    assert caught.value.fields["indices"] == [0, 1]


def test_another_mask_over_the_same_ids_is_a_changed_row() -> None:
    known = journal_state(ok=[replace(entry(row(0)), mask_digest="other")])
    found = plan([row(0)], known)
    with pytest.raises(DatasetError, match="1 have another loss_mask or id") as caught:
        require_unchanged(found, known.stored, survey([row(0)]), **PLACES)
    assert "masks from loss_mask alone" in caught.value.fix
    assert "diagnose" not in caught.value.fix, "it compares ids, and those are equal"


def test_each_changed_row_is_counted_once_and_a_cut_list_says_so() -> None:
    """25 with other ids, one moved onto a row that went, one with another mask, one gone."""
    before = [row(i, digest=f"d{i}") for i in range(30)]
    known = journal_state(ok=[entry(r) for r in before])
    now = [row(i, digest=f"new{i}") for i in range(25)]
    now += [row(25, digest="d28"), row(26, digest="d26"), row(27, digest="d27")]
    stored = known.stored | {26: replace(known.stored[26], mask_digest="other")}
    state = journal_state(ok=list(stored.values()))
    found = plan(now, state)
    with pytest.raises(DatasetError) as caught:
        require_unchanged(found, state.stored, survey(now), **PLACES)
    assert caught.value.message == (
        "29 stored rows are not the rows that the dataset has there now: 1 moved to another "
        "index, 26 have other input_ids, 1 have another loss_mask or id, 1 are rejected or gone; "
        "the first 20 are listed"
    )
    assert caught.value.fields["indices"] == list(range(20))


@pytest.mark.parametrize("num_shards", [1, 2, 3, 8])
def test_each_row_is_in_exactly_one_shard(num_shards: int) -> None:
    for index in range(50):
        assert sum(in_shard(index, shard, num_shards) for shard in range(num_shards)) == 1


def test_shards_together_cover_good_and_rejected_rows() -> None:
    rows = [row(i) for i in range(0, 20, 2)]
    plans = [plan(rows, shard=(s, 3), rejected=(1, 3, 5, 7)) for s in range(3)]
    assert sorted(i for p in plans for i in indices(p.todo)) == [r.index for r in rows]
    assert sorted(r.index for p in plans for r in p.rejections) == [1, 3, 5, 7]
    assert sum(p.num_rows for p in plans) == 14


def test_too_many_masks_of_zeros_stop_the_job() -> None:
    found = survey([row(i) for i in range(10)], zero_masks=2)
    require_masks(found, 0.2)
    with pytest.raises(DatasetError, match="2 of 10"):
        require_masks(found, 0.1)


def test_too_many_rejected_rows_stop_the_job_with_their_reasons_counted() -> None:
    found = survey([row(0)], rejected=tuple(range(1, 20)))
    padded = {"reason": "padded", "where": "a.jsonl, line 2", "fix": "cut it"}
    found.rejections[0] = replace(found.rejections[0], **padded)
    with pytest.raises(DatasetError) as caught:
        require_few_rejections(found, 0.9, strict=False)
    assert caught.value.message == (
        "19 of 20 rows are rejected, and max_rejected_share is 0.9: 18 empty, 1 padded; "
        "the first: row 2, empty: []; row 1 (a.jsonl, line 2), padded: []"
    )
    assert caught.value.fix == "empty: drop it; padded: cut it"
    with pytest.raises(DatasetError) as of_one_reason:
        require_few_rejections(survey([], rejected=(0, 1)), 1.0, strict=False)
    assert of_one_reason.value.message.endswith("2 empty; the first: row 0, empty: []")
    assert of_one_reason.value.fix == "drop it"
    require_few_rejections(found, 0.95, strict=False)
    with pytest.raises(DatasetError, match=r"19 of 20 .* strict is set"):
        require_few_rejections(found, 0.95, strict=True)


def test_rows_that_are_all_rejected_stop_it_whatever_the_share() -> None:
    with pytest.raises(DatasetError, match=r"2 of 2 .* none is left: 2 empty"):
        require_few_rejections(survey([], rejected=(0, 1)), 1.0, strict=False)


def test_a_job_that_cannot_fit_is_refused_with_what_would() -> None:
    found = plan([row(i, num_tokens=1000) for i in range(10)])
    require_room(found, store_free=2_000_000, dump_free=200_000, num_shards=1)
    with pytest.raises(JobError, match="limit = 3 rows"):
        require_room(found, store_free=500_000, dump_free=200_000, num_shards=1)
    with pytest.raises(JobError, match="longest row"):
        require_room(found, store_free=2_000_000, dump_free=50_000, num_shards=1)


@pytest.mark.parametrize("free", [150_000, 500_000, 900_000])
def test_the_limit_that_is_proposed_is_accepted(free: int) -> None:
    rows = [row(i, num_tokens=2000 if i % 5 == 2 else 100) for i in range(0, 40, 2)]
    with pytest.raises(JobError, match="limit = ") as caught:
        require_room(plan(rows), store_free=free, dump_free=10**6, num_shards=1)
    found = re.search(r"limit = (\d+) rows", caught.value.fix)
    assert found
    fitting = plan([row for row in rows if row.index < int(found[1])])
    assert fitting.todo
    require_room(fitting, store_free=free, dump_free=10**6, num_shards=1)


def test_a_full_disk_gets_no_limit_of_0_which_would_mean_all() -> None:
    with pytest.raises(JobError, match=r"0\.00 GB free") as caught:
        require_room(plan([row(0), row(1)]), store_free=0, dump_free=10**6, num_shards=1)
    assert caught.value.fix == "free space there, or name another disk"


def test_totals_are_counted_from_the_journal() -> None:
    rows = [row(i) for i in range(6)]
    found = plan(rows[:5], journal_state(ok=[entry(rows[0])]), rejected=(5,))
    after = journal_state(ok=[entry(rows[i]) for i in (0, 1, 2)], failed=[entry(rows[3], "failed")])
    totals = count_outcomes(found, after)
    assert totals == Outcomes(asked=6, ok=2, already_done=1, failed=1, rejected=1)
    assert totals.unfinished == 1
    assert not totals.reconciles


def test_an_outcome_for_other_ids_at_the_same_index_does_not_count() -> None:
    found = plan([row(0)])
    assert count_outcomes(found, journal_state(ok=[entry(row(0, digest="other"))])).unfinished == 1


def test_the_estimate_from_the_first_rows_stands_beside_the_exact_size() -> None:
    rows = [row(i, num_tokens=10 if i < 100 else 1000) for i in range(200)]
    found = plan(rows)
    assert found.todo_bytes == (100 * 10 + 100 * 1000) * 109 + 200 * 600
    assert found.estimated_bytes(100) == 200 * 10 * 109 + 200 * 600
    assert found.estimated_bytes(200) == found.todo_bytes
