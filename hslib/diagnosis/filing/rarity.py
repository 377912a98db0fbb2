"""How likely a length is by chance, and so how much an agreement of two lengths proves.

Two equal lengths of 4,710 tokens prove much where lengths spread from 1 to 30,000. They prove
nothing where half of the rows were cut at 4,710.
"""

from dataclasses import dataclass

import numpy as np

_SMOOTHING_GRID = 256  # bins over log length
_WINDOW, _NEAREST = 16, (4, 8, 12, 16)  # neighbours; of these the densest estimate counts


@dataclass(frozen=True, eq=False)
class Rarity:
    """log P(a foreign dump has this length), for the lengths that occur.

    ``values`` int64 [V] ascending, ``log_p`` float64 [V]. The probabilities are rounded *up*
    where there is doubt, so that evidence computed from them is never too strong.
    """

    values: np.ndarray
    log_p: np.ndarray

    def of(self, lengths: np.ndarray) -> np.ndarray:
        """float64, the shape of ``lengths``; 0 (no evidence) for a length that is not known."""
        if not len(self.values):
            return np.zeros(lengths.shape)
        at = np.clip(np.searchsorted(self.values, lengths), 0, len(self.values) - 1)
        return np.where(self.values[at] == lengths, self.log_p[at], 0.0)


def rarity_of_lengths(expected: np.ndarray, got: np.ndarray) -> Rarity:
    """Estimate chance from the lengths themselves.

    Args:
        expected, got: int64 lengths in tokens, negative where unknown.

    A length that occurs twice or more in one column has its frequency there. A single occurrence
    is no measure of frequency (Good and Turing: singletons carry the mass of what was not seen),
    so it gets the smoothed density around it: a Gaussian kernel over log length.
    """
    columns = [column[column > 0] for column in (expected, got)]
    pooled = np.concatenate(columns)
    values = np.unique(pooled)
    if not len(values):
        return Rarity(values, np.zeros(0))
    p = _smooth_density(pooled, values)
    for column in columns:
        known, counts = np.unique(column, return_counts=True)
        often = counts >= 2
        at = np.searchsorted(values, known[often])
        p[at] = np.maximum(p[at], (counts[often] + 1) / (len(column) + 1))
    return Rarity(values, np.log(np.minimum(p, 1.0)))


def local_log_p(got: np.ndarray) -> np.ndarray:
    """log P(length) among the neighbours in filing order, float64 [N]; -inf for short inputs.

    In a dataset sorted by length neighbours are alike, so two sorted sequences often agree by
    chance. The density among a value's sixteen neighbours accounts for that; where order means
    nothing it is about the density of all values.
    """
    reach = _WINDOW // 2
    if len(got) <= _WINDOW:
        return np.full(len(got), -np.inf)
    padded = np.pad(got.astype(np.float64), reach, mode="reflect")
    padded[padded < 0] = np.inf
    distances = []
    for offset in [*range(-reach, 0), *range(1, reach + 1)]:
        with np.errstate(invalid="ignore"):
            shifted = padded[reach + offset : reach + offset + len(got)]
            distances.append(np.abs(shifted - got).astype(np.float32))
    nearest = np.sort(np.stack(distances), axis=0).astype(np.float64)
    with np.errstate(divide="ignore"):
        estimates = [np.log(k / _WINDOW / (2 * nearest[k - 1] + 1)) for k in _NEAREST]
    return np.asarray(np.max(estimates, axis=0))


def rarity_of_codes(expected: np.ndarray, got: np.ndarray) -> Rarity:
    """The same for numbered digests: two different rows never agree by chance."""
    known, counts = np.unique(expected[expected >= 0], return_counts=True)
    total = max(1, int(counts.sum()))
    p = np.where(counts >= 2, counts / total, 2.0**-64)
    missing = np.setdiff1d(got[got >= 0], known)
    values = np.concatenate([known, missing])
    order = np.argsort(values)
    log_p = np.log(np.concatenate([p, np.full(len(missing), 2.0**-64)]))
    return Rarity(values[order], log_p[order])


def _smooth_density(pooled: np.ndarray, values: np.ndarray) -> np.ndarray:
    """P(length) from a kernel estimate of log length's density, for each of ``values``."""
    logs = np.log(pooled)
    spread = max(float(logs.std()), 0.05)
    bandwidth = 1.06 * spread * len(logs) ** -0.2  # Silverman's rule
    low, high = logs.min() - 4 * bandwidth, logs.max() + 4 * bandwidth
    heights, edges = np.histogram(logs, bins=_SMOOTHING_GRID, range=(low, high))
    step = edges[1] - edges[0]
    reach = max(1, int(np.ceil(4 * bandwidth / step)))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * step / bandwidth) ** 2)
    smooth = np.convolve(heights, kernel / kernel.sum(), mode="same")[:_SMOOTHING_GRID]
    density = smooth / (len(logs) * step)
    at = np.interp(np.log(values), (edges[:-1] + edges[1:]) / 2, density)
    return np.asarray(np.maximum(at / values, 1e-12))  # d(log n) = dn / n
