"""The scheduler: order, groups, byte budgets, tries that wait, and rows that servers die of."""

from typing import Any

from make.rows import random_sample

from hslib.dataset import Sample
from hslib.job.scheduler import Group, Load, Scheduler, pack

BYTES = 100  # of states per token
NOW = 1000.0


def scheduler(
    *lengths: int, most_samples: int = 1, most_tokens: int = 10**6, most_losses: int = 3
) -> Scheduler:
    return Scheduler(
        [random_sample(i, n) for i, n in enumerate(lengths)],
        most_samples=most_samples,
        most_tokens=most_tokens,
        state_bytes=BYTES,
        most_losses=most_losses,
    )


def load(most_bytes: int = 10**9, most_requests: int = 99) -> Load:
    return Load(most_bytes, most_requests)


def indices(group: Group | None) -> list[int] | None:
    return None if group is None else [pending.sample.index for pending in group]


def finish(work: Scheduler, on: Load, group: Group) -> None:
    work.answered(on)
    work.stored(on, group)


def packed(lengths: list[int], most_samples: int, most_tokens: int) -> list[list[int]]:
    samples: list[Sample] = [random_sample(i, n) for i, n in enumerate(lengths)]
    groups = list(pack(samples, most_samples, most_tokens))
    assert [s.index for group in groups for s in group] == list(range(len(lengths)))
    return [[s.num_tokens for s in group] for group in groups]


def test_short_rows_share_a_request_and_long_ones_go_alone() -> None:
    assert packed([5, 5, 5, 5, 5], 2, 100) == [[5, 5], [5, 5], [5]]
    assert packed([5, 90, 6, 200, 1, 1], 8, 100) == [[5, 90], [6], [200], [1, 1]]
    assert packed([], 8, 100) == []


def test_groups_go_out_in_order_and_end() -> None:
    work, server = scheduler(5, 5, 5, most_samples=2), load()
    groups: list[Any] = [work.take(server, NOW), work.take(server, NOW)]
    assert [indices(group) for group in groups] == [[0, 1], [2]]
    assert work.take(server, NOW) is None
    for group in groups:
        finish(work, server, group)
    assert (server.held_bytes, server.is_idle()) == (0, True)


def test_a_group_waits_until_it_fits_and_is_not_overtaken() -> None:
    work, server = scheduler(10, 80, 1), load(9_000)
    first = work.take(server, NOW)
    assert first is not None
    assert work.take(server, NOW) is None, "80 tokens do not fit beside the first"
    assert work.take(server, NOW) is None, "one token would, but it is not its turn"
    finish(work, server, first)
    assert indices(work.take(server, NOW)) == [1]


def test_what_is_too_large_for_one_server_now_goes_to_another() -> None:
    work, full, free = scheduler(50, 50, 50), load(6_000), load()
    assert indices(work.take(full, NOW)) == [0]
    assert work.take(full, NOW) is None
    assert indices(work.take(free, NOW)) == [1]


def test_a_group_larger_than_the_whole_budget_goes_alone() -> None:
    work, server = scheduler(200, 5), load(9_000)
    large = work.take(server, NOW)
    assert indices(large) == [0]
    assert large is not None
    assert work.take(server, NOW) is None
    finish(work, server, large)
    assert indices(work.take(server, NOW)) == [1]


def test_an_answered_request_makes_room_for_another_before_it_is_stored() -> None:
    work, server = scheduler(5, 5, 5, 5), load(most_requests=1)
    assert indices(work.take(server, NOW)) == [0]
    assert work.take(server, NOW) is None
    work.answered(server)
    assert indices(work.take(server, NOW)) == [1]
    work.answered(server)
    assert work.take(server, NOW) is None, "two wait for the disk: a third must not pile up"


def test_a_sample_that_was_put_off_goes_alone_when_it_is_due_and_before_others() -> None:
    work, server = scheduler(5, 5, 5, most_samples=2), load()
    group = work.take(server, NOW)
    assert group is not None
    work.put_off(group[1], NOW + 5)
    work.put_off(group[0], NOW + 2)
    assert work.wait_s(NOW) == 2
    assert indices(work.take(server, NOW + 1)) == [2]
    assert work.take(server, NOW + 1) is None
    assert indices(work.take(server, NOW + 6)) == [0]
    assert indices(work.take(server, NOW + 6)) == [1]
    assert work.wait_s(NOW) is None


def test_a_server_that_is_away_or_given_up_is_sent_nothing() -> None:
    for flag in ("is_away", "is_over"):
        work, server = scheduler(5), load()
        setattr(server, flag, True)
        assert work.take(server, NOW) is None
        assert indices(work.take(load(), NOW)) == [0]


def lose(work: Scheduler, on: Load, group: Group | None) -> list[bool]:
    assert group is not None
    found = [work.lose(pending) for pending in group]
    finish(work, on, group)
    return found


def test_rows_that_servers_died_with_go_one_by_one_and_at_last_with_nothing_else() -> None:
    work, server = scheduler(5, 5, 5, most_samples=2), load()
    assert lose(work, server, work.take(server, NOW)) == [True, True]
    again = [work.take(server, NOW), work.take(server, NOW)]
    assert [indices(group) for group in again] == [[0], [1]]
    for group in again:
        assert lose(work, server, group) == [True]
    other = work.take(server, NOW)
    assert indices(other) == [2], "the others first"
    assert other is not None
    assert work.take(server, NOW) is None, "a suspect needs the server for itself"
    finish(work, server, other)
    suspect = work.take(server, NOW)
    assert indices(suspect) == [0]
    assert work.take(server, NOW) is None, "and nothing goes beside it"
    assert lose(work, server, suspect) == [False], "it is to blame: nothing else was there"
    innocent = work.take(server, NOW)
    assert indices(innocent) == [1]
    assert innocent is not None
    finish(work, server, innocent)
    assert work.take(server, NOW) is None


def test_a_row_is_never_blamed_in_company() -> None:
    for most_losses in (1, 2, 3, 5):
        work, server = scheduler(5, 5, most_losses=most_losses), load()
        blamed = []
        for _ in range(12):
            groups = []
            while (group := work.take(server, NOW)) is not None:
                groups.append(group)
            for group in groups:
                blamed += [g for g in [lose(work, server, group)] if g == [False]]
                assert not (len(groups) > 1 and blamed)
        assert len(blamed) == 2, "both, each alone"
