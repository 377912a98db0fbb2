"""Which samples and tokens the statistics read: all, or a draw that its seed repeats."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hslib.store import Entry

MAX_TOKENS = 1024  # for the spectrum; of the case study's width they take 59 MB


@dataclass(frozen=True)
class Sampling:
    """What was drawn; ``indices`` ascend.

    ``tokens``: the tokens for the spectrum, drawn uniformly over all tokens of ``indices``; sample
    index -> ascending positions.
    """

    seed: int
    indices: tuple[int, ...]
    num_stored: int
    num_tokens: int
    tokens: Mapping[int, np.ndarray]

    @property
    def is_whole(self) -> bool:
        return len(self.indices) == self.num_stored

    @property
    def drawn_tokens(self) -> int:
        return sum(len(positions) for positions in self.tokens.values())

    def sentence(self) -> str:
        """What the numbers are about, in words."""
        what = f"All {self.num_stored:,} stored samples"
        if not self.is_whole:
            what = (
                f"{len(self.indices):,} of {self.num_stored:,} stored samples, drawn uniformly "
                f"without replacement (seed {self.seed})"
            )
        return (
            f"{what}: every one of their {self.num_tokens:,} tokens; the spectrum from "
            f"{self.drawn_tokens:,} of these, drawn uniformly (seed {self.seed})."
        )


def draw(
    entries: Mapping[int, Entry], sample_limit: int, seed: int, max_tokens: int = MAX_TOKENS
) -> Sampling:
    """Draw ``sample_limit`` samples (0 = all), and ``max_tokens`` of their tokens. Pure."""
    rng = np.random.default_rng(seed)
    indices = np.array(sorted(entries), dtype=np.int64)
    if 0 < sample_limit < len(indices):
        indices = np.sort(rng.choice(indices, sample_limit, replace=False))
    ends = np.cumsum([entries[int(i)].num_tokens for i in indices], dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    drawn = np.sort(rng.choice(total, min(max_tokens, total), replace=False)) if total else ends
    owners = np.searchsorted(ends, drawn, side="right")
    tokens = {}
    for owner in np.unique(owners):
        start = ends[owner] - entries[int(indices[owner])].num_tokens
        tokens[int(indices[owner])] = drawn[owners == owner] - start
    return Sampling(seed, tuple(map(int, indices)), len(entries), total, tokens)
