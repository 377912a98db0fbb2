"""Rates of the last minute, and how they are told."""

import pytest
from make.progress import progress

from hslib.job import duration, time_words
from hslib.job.pace import WINDOW_S, Amounts, Pace


def test_a_job_that_gets_slower_is_told_so_within_a_minute() -> None:
    """10 samples/s for ten minutes, then 1: the average would still say 9 after another minute."""
    pace, done, now = Pace(0.0), 0.0, 0.0
    while now < 660:
        now += 0.5
        done += 0.5 * (10 if now <= 600 else 1)
        rates = pace.rates(now, Amounts(done, done * 100, 0))
        if now == 600:
            assert rates == pytest.approx((10, 1000, 0))
    assert rates == pytest.approx((1, 100, 0), rel=0.02)
    assert pace.overall(now, Amounts(done)).samples == pytest.approx(done / 660)


def test_a_job_that_stands_still_has_no_rate() -> None:
    pace = Pace(0.0)
    pace.rates(10.0, Amounts(50, 5000, 1))
    assert pace.rates(10.0 + 2 * WINDOW_S, Amounts(50, 5000, 1)).samples < 0.5
    assert pace.rates(10.5 + 3 * WINDOW_S, Amounts(50, 5000, 1)) == (0, 0, 0)


def test_a_job_that_just_began_has_the_rate_so_far() -> None:
    assert Pace(5.0).rates(5.2, Amounts(1, 10, 0)) == pytest.approx((5, 50, 0))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (89, "89 s"), (125, "2 min"), (7500, "2 h 05 min"), (36000, "10 h 00 min")],
)
def test_durations_are_read_at_a_glance(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_elapsed_and_remaining_time_stand_side_by_side() -> None:
    assert time_words(progress()) == "2 min elapsed, about 10 min left"
    assert time_words(progress(eta_s=None)) == "2 min elapsed"
