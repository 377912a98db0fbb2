"""Rates over a job's working time, from journal lines of known times."""

import numpy as np
import pytest

from hslib.stats.throughput import rate_summary, rates_over_time, working_time
from hslib.store import Entry


def job(finished_at: list[float], latency_s: float = 1.0) -> list[Entry]:
    return [
        Entry(
            index=i,
            id=str(i),
            status="ok",
            num_tokens=100,
            size_bytes=2_000_000,
            latency_s=latency_s,
            finished_at=1e9 + at,
            attempts=1,
        )
        for i, at in enumerate(finished_at)
    ]


def test_a_steady_job_has_a_flat_line() -> None:
    table = rates_over_time(job(list(np.arange(1.0, 601.0))))
    assert table["samples"].sum() == 600
    np.testing.assert_allclose(table["samples_per_s"], 1, rtol=0.1)
    np.testing.assert_allclose(table["mb_per_s"], 2, rtol=0.1)
    np.testing.assert_allclose(table["tokens_per_s"], 100, rtol=0.1)
    assert (table["latency_p50_s"] == 1).all()
    assert table["to_minutes"].iloc[-1] == pytest.approx(10)


def test_a_pause_between_two_sittings_is_no_working_time() -> None:
    first, second = list(np.arange(1.0, 101.0)), list(np.arange(90_000.0, 90_100.0))
    found = rate_summary(job(first + second))
    assert found["hours"] == pytest.approx(200 / 3600)
    assert found["samples_per_s"] == pytest.approx(1.0)


def test_slow_samples_are_not_taken_for_pauses() -> None:
    at = working_time(np.array([100.0, 190.0, 280.0]), np.array([90.0, 90.0, 90.0]))
    assert at.tolist() == [90.0, 180.0, 270.0]


def test_a_job_that_slows_down_shows_it() -> None:
    slowing = list(np.cumsum(np.concatenate([np.full(300, 0.5), np.full(300, 2.0)])))
    table = rates_over_time(job(slowing))
    assert table["samples_per_s"].iloc[0] == pytest.approx(2, rel=0.2)
    assert table["samples_per_s"].iloc[-1] == pytest.approx(0.5, rel=0.2)


def test_bins_are_longer_than_an_answer_takes() -> None:
    """Rows that share a request end together: shorter bins would show that and nothing else."""
    table = rates_over_time(job([float(10 * (i // 8 + 1)) for i in range(64)], latency_s=10.0))
    assert len(table) <= 8


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_samples_or_none_make_a_table(count: int) -> None:
    table = rates_over_time(job([5.0 * (i + 1) for i in range(count)]))
    assert table["samples"].sum() == count
    assert len(table) >= 1
    assert bool(rate_summary(job([5.0] * count))) == (count > 0)
