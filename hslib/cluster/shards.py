"""Cuts the rows of a job on a cluster into shards. Pure.

Shards follow one another in the dataset's order and have about the same number of tokens. There
are many per replica: at the end all replicas are busy but for the time of one shard.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hslib.dataset import Sample

SHARDS_PER_REPLICA = 32


@dataclass(frozen=True)
class Shard:
    """What a replica is handed at once.

    ``run``: text that no other run has, so that no two runs share a journal.
    """

    run: str
    number: int
    samples: tuple[Sample, ...]

    @property
    def name(self) -> str:
        """The part of the job's journal that is this shard's."""
        return f"{self.run}-{self.number:05d}"

    def rows(self) -> str:
        """In words, for an error."""
        first, last = self.samples[0].index, self.samples[-1].index
        return f"{len(self.samples)} rows from {first} to {last}"


def count_shards(todo_tokens: int, num_replicas: int, least_tokens: int) -> int:
    """How many shards a job has.

    Args:
        least_tokens: of a shard; below it a server would not have its requests full.
    """
    return max(1, min(SHARDS_PER_REPLICA * num_replicas, todo_tokens // least_tokens))


def cut(samples: Iterable[Sample], todo_tokens: int, count: int, run: str) -> Iterator[Shard]:
    """At most ``count`` shards of the samples, which are read as they are wanted.

    Args:
        todo_tokens: of all samples together.
        run: as in :class:`Shard`.
    """
    taken: list[Sample] = []
    number = tokens = 0
    for sample in samples:
        taken.append(sample)
        tokens += sample.num_tokens
        if tokens * count >= todo_tokens * (number + 1):
            yield Shard(run, number, tuple(taken))
            taken, number = [], tokens * count // todo_tokens
    if taken:
        yield Shard(run, number, tuple(taken))
