"""Logs whose truth is known: no wrong cause, and no wrong owner that is named as certain."""

import os
from collections import Counter

import numpy as np
import pytest
from make.joblogs import KINDS, LENGTHS, NOBODY, ODD_KINDS, ODD_LENGTHS, JobLog, job_log, wide

from hslib.diagnosis import Diagnosis, diagnose_counts, sample_table

# three hundred of each kind take minutes: HSLIB_JOB_LOGS=300 pytest -m slow tests/diagnosis
QUICK, MANY = 15, int(os.environ.get("HSLIB_JOB_LOGS", "60"))


def diagnosed(log: JobLog) -> Diagnosis:
    return diagnose_counts(log.observed, log.rows)


def check(log: JobLog, found: Diagnosis, name: str) -> None:
    """What is said is true; it may be nothing."""
    assert set(found.verdict.codes) - {"unknown"} <= log.causes, name
    numbers = sample_table(found).set_index("sample")
    holds = numbers["holds"].dropna()
    assert (holds.to_numpy(int) == log.sources[holds.index]).all(), name
    if "tokenizer" in found.verdict.sentences()[0].lower().replace("not the tokenizer", ""):
        assert "frame" in log.causes, name


def check_lags(log: JobLog, found: Diagnosis, name: str) -> None:
    lags = sample_table(found).set_index("sample")["lag"].dropna()
    sources = log.sources[lags.index]
    named = sources != NOBODY
    right = lags.to_numpy(int) == lags.index.to_numpy() - sources
    assert right[named].mean() > 0.97 if named.any() else True, name


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_logs_of_each_kind(kind: str) -> None:
    run(kind, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_logs_of_each_kind(kind: str) -> None:
    run(kind, MANY)


def run(kind: str, count: int) -> None:
    mains: Counter[str] = Counter()
    for seed in range(count):
        log = job_log(kind, seed)
        found = diagnosed(log)
        check(log, found, f"{kind} {seed}")
        check_lags(log, found, f"{kind} {seed}")
        mains[found.verdict.main] += 1
        is_clear = LENGTHS[seed % len(LENGTHS)] is wide and len(log.got) >= 40
        if kind == "constant" and is_clear:
            assert found.verdict.main == "shift", seed
    if kind != "noise":
        assert mains["shift"] >= 0.7 * count, mains


@pytest.mark.slow
@pytest.mark.parametrize("kind", ODD_KINDS)
def test_logs_of_kinds_that_the_model_does_not_have(kind: str) -> None:
    """Sorted, periodic and repeated lengths; restarts, gaps, two clients in turns."""
    for seed in range(MANY // 2):
        log = job_log(kind, seed, ODD_LENGTHS)
        check(log, diagnosed(log), f"{kind} {seed}")


def test_equal_neighbours_do_not_make_the_lag_grow() -> None:
    """The log has no line for the second of two equal ones: its length looks right."""
    expected = np.array([166, 11072, 1504, 1504, 83, 700, 700, 700, 91])
    found = diagnosed(made(expected, lag=1))
    assert {segment.lag for segment in found.filing.alignment.segments} == {1}
    assert found.verdict.codes == ("shift",)


def test_short_rows_that_hold_the_predecessors_states_are_no_tokenizer() -> None:
    expected = np.array([30, 41, 41, 52, 44, 44, 36, 31, 31, 31, 45, 45, 37, 29])
    found = diagnosed(made(expected, lag=1))
    assert found.verdict.main == "shift"
    assert "tokenizer" not in found.verdict.by_kind


def test_rows_of_one_length_that_lack_as_many_rows_as_others_are_not_cut_at_a_limit() -> None:
    expected = np.repeat([1198, 503], [8, 5])
    log = JobLog(expected, expected - 2, np.arange(13), frozenset({"frame"}), None)
    check(log, diagnosed(log), "two lengths")


def test_too_little_evidence_is_said() -> None:
    found = diagnosed(made(np.array([128, 256, 128, 256, 256]), lag=1))
    text = "\n".join(found.verdict.sentences())
    assert text.startswith("UNDECIDED, too little evidence: ")
    assert "too few lengths, or too similar ones, to distinguish a shift from chance" in text


def made(expected: np.ndarray, lag: int) -> JobLog:
    sources = np.maximum(np.arange(len(expected)) - lag, NOBODY)
    got = np.where(sources < 0, expected, expected[sources])
    return JobLog(expected, got, sources, frozenset({"shift"}), None)
