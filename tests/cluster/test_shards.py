"""How a job's rows are cut into shards. Pure."""

import itertools

import numpy as np
import pytest
from make.rows import random_sample

from hslib.cluster.shards import SHARDS_PER_REPLICA, count_shards, cut


@pytest.mark.parametrize("count", [1, 2, 7, 64, 1000])
def test_every_row_is_in_one_shard_in_order_and_no_two_shards_share_a_name(count: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 300, 200)
    samples = [random_sample(i, int(n)) for i, n in enumerate(lengths)]
    shards = list(cut(samples, int(lengths.sum()), count, "1f03a9"))
    assert [s.index for shard in shards for s in shard.samples] == list(range(200))
    assert len({shard.name for shard in shards}) == len(shards) <= count
    assert all(shard.samples for shard in shards)


def test_shards_have_about_the_same_number_of_tokens() -> None:
    samples = [random_sample(i, 10 + i % 40) for i in range(2000)]
    todo = sum(s.num_tokens for s in samples)
    sizes = [sum(s.num_tokens for s in shard.samples) for shard in cut(samples, todo, 64, "r")]
    assert len(sizes) == 64
    assert max(sizes) <= todo / 64 + 50
    assert min(sizes) >= todo / 64 - 50


def test_a_row_larger_than_a_shard_is_a_shard_by_itself_and_takes_the_place_of_several() -> None:
    samples = [random_sample(0, 10), random_sample(1, 1000), random_sample(2, 10)]
    shards = list(cut(samples, 1020, 10, "r"))
    assert [[s.index for s in shard.samples] for shard in shards] == [[0, 1], [2]]
    assert shards[0].rows() == "2 rows from 0 to 1"


def test_samples_are_read_as_they_are_wanted() -> None:
    read: list[int] = []

    def samples() -> itertools.chain[object]:
        for i in range(100):
            read.append(i)
            yield random_sample(i, 10)

    shards = cut(samples(), 1000, 10, "r")  # type: ignore[arg-type]
    next(shards)
    assert len(read) == 10


def test_a_small_job_has_few_shards_and_a_large_one_many_per_replica() -> None:
    assert count_shards(10**9, 8, 65536) == 8 * SHARDS_PER_REPLICA
    assert count_shards(100_000, 8, 65536) == 1
    assert count_shards(10, 8, 65536) == 1
