"""The feed: order, byte budgets, and groups that come back."""

import threading
import time
from typing import Any

import pytest
from make.rows import random_sample

from hslib.job.scheduler import Budget, Feed
from hslib.parameters import ExtractionParameters

BYTES = 100  # of states a token


@pytest.fixture
def feed_of() -> Any:
    def make(*lengths: int, most_bytes: int = 10**9, **values: Any) -> Feed:
        parameters = ExtractionParameters.from_values({"samples_per_request": 1, **values})
        samples = [random_sample(i, n) for i, n in enumerate(lengths)]
        return Feed(parameters, BYTES, most_bytes, samples)

    return make


def indices(group: Any) -> list[int]:
    return [sample.index for sample in group]


def test_groups_come_in_order_and_end(feed_of: Any) -> None:
    feed, budget = feed_of(5, 5, 5, samples_per_request=2), Budget(10**9, 99)
    groups = [feed.next(budget), feed.next(budget)]
    assert [indices(group) for group in groups] == [[0, 1], [2]]
    for group in groups:
        feed.release(group, budget, [])
    assert feed.next(budget) is None
    assert budget.held_bytes == 0


def waits(feed: Feed, budget: Budget) -> tuple[threading.Thread, list[Any]]:
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(feed.next(budget)), daemon=True)
    thread.start()
    thread.join(0.2)
    return thread, got


def test_a_group_waits_until_it_fits_and_is_not_overtaken(feed_of: Any) -> None:
    feed, budget = feed_of(10, 80, 1), Budget(9_000, 99)
    first = feed.next(budget)
    thread, got = waits(feed, budget)  # 80 tokens do not fit beside the first
    small_thread, small = waits(feed, budget)  # one token would, but it is not its turn
    assert (got, small) == ([], [])
    assert budget.held_bytes <= budget.limit_bytes
    feed.release(first, budget, [])
    thread.join(5)
    assert (indices(got[0]), small) == ([1], [])
    feed.release(got[0], budget, [])
    small_thread.join(5)
    assert indices(small[0]) == [2]


def test_a_group_larger_than_the_whole_budget_goes_alone(feed_of: Any) -> None:
    feed, budget = feed_of(200, 5), Budget(9_000, 99)
    large = feed.next(budget)
    assert indices(large) == [0]
    thread, got = waits(feed, budget)
    assert got == []
    feed.release(large, budget, [])
    thread.join(5)
    assert indices(got[0]) == [1]


def test_one_request_never_needs_more_than_fits_at_once(feed_of: Any) -> None:
    feed = feed_of(*[50] * 8, most_bytes=104 * 120, samples_per_request=8)
    budget = Budget(10**9, 99)
    sizes = []
    while (group := feed.next(budget)) is not None:
        sizes.append(len(group))
        feed.release(group, budget, [])
    assert sizes == [2, 2, 2, 2]


def test_a_full_server_does_not_hold_up_another(feed_of: Any) -> None:
    feed, slow, quick = feed_of(50, 50, 50), Budget(6_000, 99), Budget(10**9, 99)
    feed.next(slow)
    thread, got = waits(feed, slow)
    assert got == []
    assert indices(feed.next(quick)) == [2]
    feed.close()
    thread.join(5)


def test_what_comes_back_goes_out_again_one_by_one_and_nobody_leaves_before(feed_of: Any) -> None:
    feed, budget = feed_of(5, 5, samples_per_request=2), Budget(10**9, 99)
    group = feed.next(budget)
    thread, got = waits(feed, budget)  # nothing is left, but the group may come back
    assert got == []
    assert thread.is_alive()
    feed.release(group, budget, group)
    thread.join(5)
    assert indices(got[0]) == [0]
    assert budget.is_busy(), "its server is away"
    feed.resume(budget)
    assert indices(feed.next(budget)) == [1]


def test_a_server_that_was_given_up_is_handed_nothing(feed_of: Any) -> None:
    feed, gone, other = feed_of(5, 5), Budget(10**9, 99), Budget(10**9, 99)
    group = feed.next(gone)
    feed.release(group, gone, group)
    thread, got = waits(feed, gone)
    assert thread.is_alive()
    feed.resume(gone, give_up=True)
    thread.join(5)
    assert got == [None]
    assert indices(feed.next(other)) == [0]


def test_a_closed_feed_hands_out_nothing(feed_of: Any) -> None:
    feed, budget = feed_of(5, 5), Budget(10**9, 99)
    feed.next(budget)
    feed.close()
    assert feed.next(budget) is None


def test_an_answered_request_makes_room_for_another_before_it_is_stored(feed_of: Any) -> None:
    feed, budget = feed_of(5, 5, 5, samples_per_request=1), Budget(10**9, 1)
    first = feed.next(budget)
    assert first is not None
    assert budget.is_busy()
    feed.answered(first, budget)
    feed.answered(first, budget)
    second = feed.next(budget)
    assert second is not None
    assert second != first
    feed.release(first, budget, [])
    assert budget.is_busy(), "the second is still unanswered"
    feed.release(second, budget, [])
    assert not budget.is_busy()
    assert budget.held_bytes == 0


def test_a_busy_server_takes_no_group_that_another_could_have(feed_of: Any) -> None:
    feed, busy, free = feed_of(5, 5, samples_per_request=1), Budget(10**9, 1), Budget(10**9, 1)
    first = feed.next(busy)
    assert first is not None
    waiting = threading.Thread(target=feed.next, args=(busy,), daemon=True)
    waiting.start()
    time.sleep(0.1)
    second = feed.next(free)
    assert second is not None
    assert [s.index for s in second] == [1]
    feed.close()
    waiting.join(5)
    assert not waiting.is_alive()


def test_groups_that_are_put_go_out_until_the_end_is_told() -> None:
    parameters = ExtractionParameters.from_values({"samples_per_request": 2})
    feed, budget = Feed(parameters, BYTES, 10**9), Budget(10**9, 99)
    thread, got = waits(feed, budget)
    assert thread.is_alive(), "more is to come"
    feed.put([random_sample(i, 5) for i in range(3)])
    thread.join(5)
    second = feed.next(budget)
    assert [indices(got[0]), indices(second)] == [[0, 1], [2]]
    feed.release(second, budget, [])
    thread, ended = waits(feed, budget)
    assert thread.is_alive()
    feed.finish()
    thread.join(0.5)
    assert thread.is_alive(), "a group in flight may come back"
    feed.release(got[0], budget, got[0][:1])
    feed.resume(budget)
    thread.join(5)
    assert indices(ended[0]) == [0]
    feed.release(ended[0], budget, [])
    assert feed.next(budget) is None
