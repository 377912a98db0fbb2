"""Blocks of a cluster's job: largest first, small at the end, and rows that replicas die of."""

from collections.abc import Iterator

import numpy as np
import pytest
from make.rows import random_sample

from hslib.cluster import blocks
from hslib.cluster.blocks import Block, Blocks
from hslib.dataset import Sample


def blocks_of(*lengths: int, block_tokens: int = 100, least: int = 1, deaths: int = 3) -> Blocks:
    samples = [random_sample(i, n) for i, n in enumerate(lengths)]
    return Blocks(
        iter(samples),
        sum(lengths),
        block_tokens=block_tokens,
        least_tokens=least,
        most_deaths=deaths,
    )


def drain(found: Blocks, replicas: int = 1) -> list[Block]:
    taken = []
    while (block := found.next(replicas, is_idle=True)) is not None:
        taken.append(block)
    return taken


def lengths(block: Block) -> list[int]:
    return [sample.num_tokens for sample in block.samples]


def indices(found: list[Block]) -> list[int]:
    return [sample.index for block in found for sample in block.samples]


def test_the_largest_rows_go_first_and_none_is_lost() -> None:
    found = drain(blocks_of(5, 90, 7, 60, 30, 1, block_tokens=95, least=95))
    assert [lengths(block) for block in found] == [[90], [60, 30], [7, 5, 1]]
    assert sorted(indices(found)) == list(range(6))


def test_equal_rows_keep_their_order() -> None:
    assert indices(drain(blocks_of(4, 4, 4, 4))) == [0, 1, 2, 3]


def test_a_row_larger_than_a_block_goes_alone() -> None:
    assert lengths(drain(blocks_of(500, 3, block_tokens=10))[0]) == [500]


def test_blocks_shrink_towards_the_end_but_not_below_a_request() -> None:
    found = drain(blocks_of(*[10] * 400, block_tokens=400, least=50), replicas=4)
    sizes = [block.num_tokens for block in found]
    assert sizes[0] == 400
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] <= 50
    assert sizes.count(50) >= 4


def test_the_end_is_even_whatever_the_order_of_the_rows() -> None:
    """Replicas that work at one token a second end within the last block of one another."""
    rng = np.random.default_rng(4)
    rows = [*rng.integers(1, 50, 600), 900, 800]  # the longest come last in the data
    found = blocks_of(*rows, block_tokens=1000, least=20)
    ends = [0.0] * 8
    last = 0
    while (block := found.next(8, is_idle=True)) is not None:
        first = ends.index(min(ends))
        ends[first] += block.num_tokens
        last = block.num_tokens
    assert max(ends) - min(ends) <= max(50, last)


def test_no_more_than_the_window_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_WINDOW_ROWS", 10)
    read = []

    def samples() -> Iterator[Sample]:
        for i in range(100):
            read.append(i)
            yield random_sample(i, 5)

    found = Blocks(samples(), 500, block_tokens=5, least_tokens=5, most_deaths=3)
    found.next(1, is_idle=True)
    assert len(read) == 10
    found.next(1, is_idle=True)
    assert len(read) == 11
    assert len(drain(found)) == 98


def test_after_a_second_death_a_row_goes_by_itself_and_after_the_last_it_is_blamed() -> None:
    found = blocks_of(5, 6, 7, block_tokens=100, least=100)
    first = found.next(1, is_idle=True)
    assert first is not None
    assert found.survive(first, [0, 1]) == []  # row 2 was done
    second = found.next(1, is_idle=True)
    assert second is not None
    assert (indices([second]), second.is_suspect) == ([1, 0], False)
    assert found.survive(second, [0, 1]) == []
    assert found.next(1, is_idle=False) is None, "a suspect is given to an idle replica only"
    suspects = [found.next(1, is_idle=True), found.next(1, is_idle=True)]
    assert [(len(s.samples), s.is_suspect) for s in suspects if s] == [(1, True), (1, True)]
    assert suspects[0] is not None
    assert [s.index for s in found.survive(suspects[0], indices([suspects[0]]))] == indices(
        [suspects[0]]
    )
    assert found.is_empty()


def test_a_row_is_never_blamed_in_company() -> None:
    found = blocks_of(5, 6, least=100, deaths=1)
    block = found.next(1, is_idle=True)
    assert block is not None
    assert found.survive(block, [0, 1]) == []
    assert all(again.is_suspect for again in drain(found))
