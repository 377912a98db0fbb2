"""Lengths laid beside each other as sequences: the right lag, and none where there is none."""

import numpy as np
import pytest
from make.logs import LENGTHS, edited, lengths

from hslib.diagnosis.filing.alignment import UNALIGNED, align_codes, align_lengths

CASE_EXPECTED = np.array([4710, 2934, 297, 291, 360, 1166, -1])
CASE_GOT = np.array([1283, 3563, 2759, 4710, 1, 2934, 297])


def test_the_case_study_lags_by_three_and_after_a_foreign_dump_by_four() -> None:
    found = align_lengths(CASE_GOT, CASE_EXPECTED)
    assert found.lags.tolist() == [3, 3, 3, 3, 4, 4, 4]
    assert found.is_found
    assert found.chance < 1e-5


def test_the_same_lengths_with_no_order_left_are_no_shift() -> None:
    shuffled = CASE_GOT[[3, 6, 0, 5, 4, 1, 2]]
    assert not align_lengths(shuffled, CASE_EXPECTED[[3, 0, 5, 1, 4, 2, 6]]).is_found


@pytest.mark.parametrize("kind", LENGTHS)
def test_five_thousand_shifted_samples_with_insertions_deletions_and_noise(kind: str) -> None:
    rng = np.random.default_rng(5)
    expected = lengths(rng, 5000, kind)
    made = edited(rng, expected, kind)
    found = align_lengths(made.got, expected)
    assert found.is_found
    named = (made.sources >= 0) & (found.lags != UNALIGNED)
    assert (found.sources == made.sources)[named].mean() > 0.995
    assert named.mean() > 0.6  # where lengths are equal, the place of a change is left open
    assert (found.sources == made.sources)[found.certain & (made.sources >= 0)].all()


@pytest.mark.parametrize("shift", [1, 17, 1200])
def test_a_constant_shift_is_one_segment(shift: int) -> None:
    rng = np.random.default_rng(shift)
    expected = lengths(rng, 5000)
    made = edited(rng, expected, shift=shift, insertions=0, deletions=0)
    found = align_lengths(made.got, expected)
    assert {s.lag for s in found.segments} == {shift}
    assert (found.segments[-1].stop, found.certain.mean() > 0.6) == (5000, True)


@pytest.mark.parametrize("kind", [*LENGTHS, "constant"])
@pytest.mark.parametrize("seed", range(3))
def test_independent_lengths_are_no_alignment(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    if kind == "constant":
        expected, got = np.full(5000, 4096), np.full(5000, 4096)
    else:
        expected, got = lengths(rng, 5000, kind), lengths(rng, 5000, kind)
    assert not align_lengths(got, expected).is_found


@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("count", [300, 5000])
def test_two_sorted_datasets_agree_often_and_still_are_no_alignment(kind: str, count: int) -> None:
    rng = np.random.default_rng(1)
    expected, got = np.sort(lengths(rng, count, kind)), np.sort(lengths(rng, count, kind))
    assert not align_lengths(got, expected).is_found


def test_a_sorted_dataset_that_is_shifted_is_still_found() -> None:
    rng = np.random.default_rng(2)
    expected = np.sort(lengths(rng, 2000))
    made = edited(rng, expected, shift=7, insertions=0, deletions=0, noise=0.0)
    found = align_lengths(made.got, expected)
    assert found.is_found
    assert np.median(found.lags) == 7


def test_the_bound_on_chance_holds_for_short_independent_logs() -> None:
    """Of 1,500 unrelated logs hardly any may pass for one in 10,000."""
    passed = 0
    for seed in range(1500):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(5, 40))
        kind = LENGTHS[seed % len(LENGTHS)]
        passed += align_lengths(lengths(rng, count, kind), lengths(rng, count, kind)).is_found
    assert passed <= 1


def test_what_comes_before_and_after_an_aligned_stretch_stays_unaligned() -> None:
    rng = np.random.default_rng(3)
    expected = lengths(rng, 900)
    got = lengths(rng, 900)
    got[300:600] = expected[260:560]
    found = align_lengths(got, expected)
    (segment,) = [s for s in found.segments if s.agreeing > 1]
    assert (segment.start, segment.stop, segment.lag) == (300, 600, 40)
    assert (found.lags[:290] == UNALIGNED).all()


def test_unknown_lengths_say_nothing() -> None:
    rng = np.random.default_rng(4)
    expected = lengths(rng, 200)
    got = np.roll(expected, 5)
    got[::3] = -1
    expected = np.where(np.arange(200) % 7 == 0, -1, expected)
    found = align_lengths(got, expected)
    assert found.is_found
    assert set(found.lags[10:].tolist()) == {5}
    assert not align_lengths(np.full(50, -1), expected[:50]).is_found
    assert align_lengths(got[:0], expected[:0]).segments == ()


def test_ids_prove_a_shift_from_three_samples() -> None:
    codes = np.array([11, 22, 33, 44, 55, 66])
    found = align_codes(np.array([99, 98, 11, 22, 33, 44]), codes)
    assert found.is_found
    assert found.lags.tolist()[2:] == [2, 2, 2, 2]
    assert not align_codes(np.array([91, 92, 93, 94]), codes[:4]).is_found
