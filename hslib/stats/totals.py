"""What a pass over samples keeps; its size does not grow with their tokens."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from hslib.stats.coherence import Sketch
from hslib.stats.moments import Floats
from hslib.stats.sample import Massive, SampleNumbers

_NAMED = 5
_NORM_KEYS = 1 << 15  # a norm is counted under its upper 16 float32 bits: within 0.8 %


def position_edges(longest: int) -> np.ndarray:
    """Where bins of positions begin: the first eight alone, then two bins per doubling."""
    edges = list(range(9))
    while edges[-1] < longest:
        step = edges[-1]
        edges += [step * 3 // 2, step * 2]
    return np.array([edge for edge in edges if edge < max(longest, 1)] + [max(longest, 1)])


@dataclass
class MassiveDimension:
    """How often, and where, one dimension of one state is massive."""

    count: int = 0
    largest: float = 0.0
    largest_ratio: float = 0.0
    seen_in: list[int] = field(default_factory=list)  # the first few samples
    num_samples: int = 0
    positions: Counter[int] = field(default_factory=Counter)

    def add(
        self, index: int, positions: np.ndarray, values: np.ndarray, ratios: np.ndarray
    ) -> None:
        """One sample's massive values of this dimension."""
        self.count += len(values)
        self.num_samples += 1
        if len(self.seen_in) < _NAMED:
            self.seen_in.append(index)
        top = int(np.argmax(ratios))
        if ratios[top] > self.largest_ratio:
            self.largest, self.largest_ratio = float(values[top]), float(ratios[top])
        self.positions.update(np.minimum(positions, 8).tolist())  # 8 stands for all later ones


class Totals:
    """Merges samples in order, so that the same store gives the same numbers.

    Args:
        longest: tokens of the longest sample.
    """

    def __init__(self, num_states: int, longest: int) -> None:
        self.powers = np.zeros((5, num_states))
        self.tokens = 0
        self.pairs = 0
        self.layer_cosine = np.zeros((num_states, num_states))
        self.adjacent_cosine = np.zeros(num_states)
        self.non_finite = np.zeros(num_states, dtype=np.int64)
        self.norm_counts = np.zeros((num_states, _NORM_KEYS), dtype=np.int64)
        self.norm_sums = np.zeros((2, num_states))  # of norms, of their squares
        self.edges = position_edges(longest)
        self.by_position = np.zeros((3, len(self.edges) - 1, num_states))  # count, sum, squares
        self.massive: dict[tuple[int, int], MassiveDimension] = defaultdict(MassiveDimension)
        self.picked: list[np.ndarray] = []
        self.sketches: list[Sketch] = []

    def add(self, sample: SampleNumbers) -> None:
        norms = sample.norms.astype(np.float64)
        self.powers += sample.powers
        self.tokens += len(norms)
        self.pairs += len(norms) - 1
        self.layer_cosine += sample.layer_cosine
        self.adjacent_cosine += sample.adjacent_cosine
        self.non_finite += sample.non_finite
        self.norm_sums += (norms.sum(axis=0), (norms**2).sum(axis=0))
        keys = sample.norms.view(np.uint32) >> 16
        for state in range(norms.shape[1]):
            np.add.at(self.norm_counts[state], keys[:, state], 1)
        self._add_positions(norms)
        self._add_massive(sample.index, sample.massive)
        if len(sample.picked):
            self.picked.append(sample.picked)
        self.sketches.append(sample.sketch)

    def _add_positions(self, norms: Floats) -> None:
        starts = self.edges[:-1][self.edges[:-1] < len(norms)]
        counts = np.diff(np.append(starts, len(norms)))
        bins = self.by_position[:, : len(starts)]
        bins[0] += counts[:, None]
        bins[1] += np.add.reduceat(norms, starts, axis=0)
        bins[2] += np.add.reduceat(norms**2, starts, axis=0)

    def _add_massive(self, index: int, massive: Massive) -> None:
        keys = np.stack([massive.state, massive.dimension], axis=1)
        for state, dimension in np.unique(keys, axis=0):
            here = (massive.state == state) & (massive.dimension == dimension)
            self.massive[int(state), int(dimension)].add(
                index, massive.position[here], massive.value[here], massive.ratio[here]
            )

    def norm_quantiles(self, shares: Floats) -> Floats:
        """Quantiles of token norms, float64 [Q, L], within 0.8 %."""
        edges = (np.arange(_NORM_KEYS + 1, dtype=np.uint32) << 16).view(np.float32)
        found = np.empty((len(shares), len(self.norm_counts)))
        for state, counts in enumerate(self.norm_counts):
            below = np.cumsum(counts)
            wanted = shares * below[-1]
            key = np.minimum(np.searchsorted(below, wanted, side="left"), _NORM_KEYS - 1)
            within = 1 - (below[key] - wanted) / np.maximum(counts[key], 1)
            low, high = edges[key].astype(np.float64), edges[key + 1].astype(np.float64)
            found[:, state] = low + np.clip(within, 0, 1) * (high - low)
        return found

    def spectrum(self, state: int) -> "Spectrum":
        """PCA of one state of the drawn tokens; values that are not finite count as 0."""
        import torch

        bits = np.concatenate([picked[:, state] for picked in self.picked])
        values = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float()
        return spectrum(values.nan_to_num(0.0, 0.0, 0.0).numpy())


@dataclass(frozen=True, eq=False)
class Spectrum:
    """``share`` float64 [K]: explained variance of each component, descending, sum 1.

    ``effective_rank`` is the exponential of the entropy of the singular values' shares
    (Roy and Vetterli 2007, "The effective rank"). Both are bounded by the tokens less one.
    """

    share: Floats
    effective_rank: float

    def components_for(self, share: float) -> int:
        """How many components explain this share of the variance."""
        return int(np.searchsorted(np.cumsum(self.share), share * (1 - 1e-12)) + 1)


def spectrum(states: np.ndarray) -> Spectrum:
    """PCA of float32 [N, H]: eigenvalues of the smaller of the two Gram matrices.

    Products of two tokens are float32: their error is in proportion to both norms, so a few
    massive tokens spoil only their own products. Sums over tokens are float64: there a massive
    token would spoil all.
    """
    import torch

    rows = torch.from_numpy(states)
    rows = rows - rows.mean(dim=0, dtype=torch.float64).to(torch.float32)
    if rows.shape[0] <= rows.shape[1]:
        gram = (rows @ rows.T).double()
    else:
        gram = rows.double().T @ rows.double()
    values = torch.linalg.eigvalsh(gram).flip(0).clamp(min=0).numpy()
    values = values[: max(1, min(len(states) - 1, states.shape[1]))]
    total = values.sum()
    if not total > 0:
        return Spectrum(np.ones(1), 1.0)
    singular = np.sqrt(values)
    weights = singular[singular > 0] / singular.sum()
    rank = float(np.exp(-(weights * np.log(weights)).sum()))
    return Spectrum(values / total, rank)
