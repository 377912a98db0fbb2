"""From lengths to causes: the case study's verdict, thirteen causes told apart, and mixes."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from make.logs import CAUSES, edited, lengths, observed

from hslib import demo
from hslib.diagnosis import diagnose_counts, read_any
from hslib.diagnosis.catalogue import CATALOGUE
from hslib.diagnosis.filing.alignment import UNALIGNED
from hslib.diagnosis.filing.finding import Finding, ranges
from hslib.diagnosis.filing.observations import UNKNOWN, observe
from hslib.diagnosis.filing.verdict import verdict_of
from hslib.diagnosis.rows import DatasetRows

CASES = 12


def rows_of(ids: list[np.ndarray]) -> DatasetRows:
    sizes = np.array([len(part) for part in ids], np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return DatasetRows(sizes, np.concatenate(ids).astype("<i4"), offsets)


def test_the_case_study_is_synchronisation_and_not_the_tokenizer() -> None:
    found = diagnose_counts(read_any(demo.case_study_path()))
    shift, foreign = found.verdict.findings
    assert (shift.code, foreign.code) == ("shift", "foreign")
    assert shift.samples.tolist() == [81, 82, 83, 84, 86, 87]
    assert foreign.samples.tolist() == [85]
    unseen = [UNALIGNED] * 3  # what samples 78 to 80 expected is not in the log
    assert found.filing.holds.tolist() == [*unseen, 81, UNALIGNED, 82, 83]
    assert shift.chance is not None and shift.chance < 1e-5
    text = "\n".join(found.verdict.sentences())
    assert "SYNCHRONISATION, not the tokenizer: 7 of 7" in text
    assert "lag 3 at 81-84 (1 of 4 agree, 3 can't be seen in the log, for example 84 hol" in text
    assert "lag 4 at 86-87 after a foreign 1-token dump at 85 (2 of 2 agree" in text
    assert "Whose states 3 of them hold is undecided" in text
    assert "By chance: less than one in " in text
    assert "delete the files of these samples" in text
    assert "03_extraction.ipynb" in text


def test_samples_that_look_right_inside_a_shift_are_named_as_wrong() -> None:
    rng = np.random.default_rng(0)
    expected = lengths(rng, 400, "equal")
    got = np.roll(expected, 2)
    differing = np.flatnonzero(got != expected)
    warned = observe(differing, expected[differing], got[differing], "log", only_mismatches=True)
    ids = [np.full(n, 1) for n in expected]
    found = diagnose_counts(warned, rows_of(ids))
    shift = found.verdict.findings[0]
    assert shift.code == "shift"
    alike = np.setdiff1d(np.arange(10, 390), differing)
    assert len(alike) > 50
    assert np.isin(alike, shift.samples).all()
    assert "look right: they hold another sample of the same length" in shift.evidence


def test_thirteen_causes_are_told_apart_by_lengths() -> None:
    table = {code: Counter(_main(code, seed) for seed in range(CASES)) for code in CAUSES}
    right = sum(row[code] for code, row in table.items())
    assert len(CAUSES) == 13
    assert right >= 0.95 * CASES * len(CAUSES), table
    assert all(row[code] >= 0.85 * CASES for code, row in table.items()), table
    wrong = sum(n for code in ("unknown",) for got, n in table[code].items() if got != code)
    assert wrong == 0, "what fits none is unknown, not a guess"


def _main(code: str, seed: int) -> str:
    return diagnose_counts(observed(code, seed)).verdict.main


def test_every_cause_has_words() -> None:
    assert set(CAUSES) <= set(CATALOGUE)
    for cause in CATALOGUE.values():
        assert cause.title and cause.cure


@pytest.mark.parametrize("kind", ["lognormal", "equal"])
def test_five_thousand_samples_with_noise_are_a_shift_with_foreign_dumps(kind: str) -> None:
    rng = np.random.default_rng(8)
    expected = lengths(rng, 5000, kind)
    made = edited(rng, expected, kind)
    found = diagnose_counts(observe(range(5000), expected, made.got, "made"))
    assert found.verdict.main == "shift"
    assert not {"limit", "chunk", "frame", "prefix_cache"} & set(found.verdict.codes)
    foreign = next(f for f in found.verdict.findings if f.code == "foreign")
    true = np.flatnonzero(made.foreign)
    assert np.isin(true, foreign.samples).mean() > 0.8
    assert np.isin(foreign.samples, true).mean() > 0.8
    named = (made.sources >= 0) & (found.filing.holds != UNALIGNED)
    assert (found.filing.holds[named] == made.sources[named]).all()
    assert named.mean() > 0.3  # the others' lengths are those of many samples


def test_a_shift_and_a_frame_in_one_log_are_a_mix() -> None:
    rng = np.random.default_rng(9)
    expected = lengths(rng, 600)
    got = np.concatenate([expected[:300] + 1, np.roll(expected, 4)[300:]])
    verdict = diagnose_counts(observe(range(600), expected, got, "made")).verdict
    assert verdict.is_mix
    assert {"shift", "frame"} <= set(verdict.codes)
    assert verdict.sentences()[0].startswith("A MIX of ")
    frame = next(f for f in verdict.findings if f.code == "frame")
    assert ranges(frame.samples) == "0-299"


def test_a_limit_beside_unrelated_noise_leaves_the_noise_unknown() -> None:
    rng = np.random.default_rng(10)
    expected = lengths(rng, 600)
    got = np.minimum(expected, 1000)
    noisy = rng.choice(600, 12, replace=False)
    got[noisy] = rng.integers(20, 900, 12)
    verdict = diagnose_counts(observe(range(600), expected, got, "made")).verdict
    assert verdict.codes == ("limit", "unknown")
    unknown = verdict.findings[1].samples
    assert np.isin(unknown, noisy).all()


def test_a_cached_prefix_is_proven_by_the_rows_ids() -> None:
    """Each with its own prefix length, so that lengths alone say nothing."""
    rng = np.random.default_rng(11)
    ids, got = [], []
    for index in range(120):
        row = rng.integers(5, 500, int(rng.integers(100, 400)))
        shared = int(rng.integers(20, 90))
        if index and index % 2:
            row[:shared] = ids[index - 1][:shared]
        ids.append(row)
        got.append(len(row) - (shared if index % 2 else 0))
    seen = observe(range(120), [len(row) for row in ids], got, "made")
    assert diagnose_counts(seen).verdict.main == "unknown"
    verdict = diagnose_counts(seen, rows_of(ids)).verdict
    assert verdict.codes == ("prefix_cache",)
    assert verdict.findings[0].samples.tolist() == list(range(1, 120, 2))
    other = rows_of([rng.integers(5, 500, len(row)) for row in ids])
    assert diagnose_counts(seen, other).verdict.main == "unknown"


def test_a_journal_of_a_sound_job_has_nothing_to_cure() -> None:
    verdict = diagnose_counts(observe(range(5), [3, 4, 5, 6, 7], [3, 4, 5, 6, 7], "j")).verdict
    assert verdict.main == "none"
    assert verdict.sentences() == ["All 5 compared samples agree; nothing to cure."]
    empty = diagnose_counts(observe([], [], [], "empty")).verdict
    assert "NOTHING TO COMPARE" in empty.sentences()[0]
    silent = diagnose_counts(observe([0, 1], [3, 4], [UNKNOWN, UNKNOWN], "silent")).verdict
    assert "NOTHING TO COMPARE" in silent.sentences()[0]


@pytest.mark.parametrize(
    ("samples", "words"),
    [([81, 82, 83, 84, 86], "81-84, 86"), ([], "none"), ([5], "5"), ([3, 1, 2], "1-3")],
)
def test_ranges_are_short(samples: list[int], words: str) -> None:
    assert ranges(samples) == words


def test_many_ranges_are_cut_with_their_count() -> None:
    assert ranges(list(range(0, 40, 2)), shown=2) == "0, 2, ... (20 in all)"


def test_a_log_of_another_dataset_is_called_that_and_read_without_it() -> None:
    rng = np.random.default_rng(12)
    expected = lengths(rng, 60)
    other = [np.full(n, 1) for n in lengths(rng, 60)]
    seen = observe(range(60), expected, np.roll(expected, 2), "log")
    verdict = diagnose_counts(seen, rows_of(other)).verdict
    assert verdict.main == "shift"
    assert verdict.codes[-1] == "other_dataset"
    first = verdict.sentences()[0]
    assert first == "THIS LOG IS NOT OF THIS DATASET: the dataset is left out of what follows."
    own = diagnose_counts(seen, rows_of([np.full(n, 1) for n in expected])).verdict
    assert "other_dataset" not in own.codes
    few = rows_of(other[:5])
    assert (
        "the dataset has no row"
        in diagnose_counts(observe(range(10, 60), expected[10:], expected[10:], "log"), few)
        .verdict.findings[0]
        .evidence
    )


def test_the_headline_follows_the_majority() -> None:
    samples = np.arange(7)
    seen = observe(samples, [9] * 7, [5] * 7, "log")
    few, many = Finding("foreign", samples[:1], "x"), Finding("unknown", samples[1:], "y")
    verdict = verdict_of([few, many], seen)
    assert verdict.main == "unknown"
    assert verdict.sentences()[0] == (
        "UNKNOWN: 7 of 7 compared samples differ, 1 of them explained by synchronisation."
    )
    turned = verdict_of(
        [replace(few, samples=samples[1:]), replace(many, samples=samples[:1])], seen
    )
    assert turned.sentences()[0] == (
        "SYNCHRONISATION, not the tokenizer: 7 of 7 compared samples differ, 1 of them unexplained."
    )


@pytest.mark.parametrize("step", [1, -1])
def test_sorted_lengths_that_are_shifted_are_no_tokenizer(step: int) -> None:
    """All that differ do so by one token; so would those of a shift."""
    expected = np.sort(np.random.default_rng(13).integers(20, 60, 500))[::step]
    got = np.concatenate([expected[:1], expected[:-1]])
    where = np.flatnonzero(got != expected)
    seen = observe(where, expected[where], got[where], "log", only_mismatches=True)
    assert "tokenizer" not in diagnose_counts(seen).verdict.by_kind
