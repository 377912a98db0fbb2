"""Which lags are worth trying: those that rare lengths and runs of lengths vote for.

Trying every lag of 40,000 samples is 3 billion comparisons. A lag that holds for a while leaves
traces: rare lengths, or runs of 2, 4 and 8 lengths, that occur elsewhere at that distance. A lag
that is missed here makes the right alignment weaker; it never makes a wrong one stronger.
"""

import numpy as np

_RUNS = (1, 2, 4, 8)
_MAX_PLACES = 12  # a run that occurs more often does not vote
_KEPT, _KEPT_OVERALL = 20, 6  # lags with most votes in a stretch, and over all stretches
_NEIGHBOURS = 2


def candidate_lags(
    got: np.ndarray, expected: np.ndarray, weights: np.ndarray, stretch: int
) -> list[np.ndarray]:
    """Ascending lags for each stretch of samples; 0 is always one of them.

    Args:
        got, expected: int64 [N], negative = not known.
        weights: float64 [N], nats of evidence when ``got`` agrees.
    """
    count = -(-len(got) // stretch)
    votes: list[dict[int, float]] = [{} for _ in range(count)]
    for length in _RUNS:
        positions, lags, nats = _agreements(got, expected, weights, length)
        _add_votes(votes, positions // stretch, lags, nats)
    return _choose(votes, repeats(expected))


def repeats(values: np.ndarray, shown: int = 4) -> list[int]:
    """The smallest distances at which most values come again: a periodic sequence has several lags.

    Every value is a point on the unit circle, so the autocorrelation (by FFT) is about the number
    of equal pairs at each distance.
    """
    known = values >= 0
    angles = 2 * np.pi * _hash_runs(values, 1).astype(np.float64) / 2.0**64
    signal = np.where(known, np.exp(1j * angles), 0)
    size = 2 * len(values)

    def pairs(of: np.ndarray) -> np.ndarray:
        spectrum = np.abs(np.fft.fft(of, size)) ** 2
        return np.asarray(np.fft.ifft(spectrum).real[: len(values) // 2])

    counts, most = pairs(signal), pairs(known.astype(np.float64))
    found = np.flatnonzero((most > 8) & (counts > 0.5 * most))
    return [int(distance) for distance in found if distance][:shown]


def _agreements(
    got: np.ndarray, expected: np.ndarray, weights: np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(position in got, lag, nats) wherever a run of ``length`` values occurs in both."""
    if len(got) < length:
        empty = np.zeros(0, np.int64)
        return empty, empty, np.zeros(0)
    keys = _hash_runs(expected, length)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    wanted = _hash_runs(got, length)
    low = np.searchsorted(ordered, wanted, "left")
    places = np.searchsorted(ordered, wanted, "right") - low
    whole = _all_known(got, length)
    where = np.flatnonzero(whole & (places > 0) & (places <= _MAX_PLACES))
    repeats = places[where]
    positions = np.repeat(where, repeats)
    offsets = np.arange(len(positions)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    sources = order[np.repeat(low[where], repeats) + offsets]
    sums = np.convolve(weights, np.ones(length), "valid")
    # a run that occurs twelve times gives a twelfth of its vote to each
    return positions, positions - sources, sums[positions] / np.repeat(repeats, repeats)


def _hash_runs(values: np.ndarray, length: int) -> np.ndarray:
    """A 64-bit number for each run; equal runs have equal ones."""
    mixed = values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    total = np.zeros(len(values) - length + 1, np.uint64)
    for offset in range(length):
        total = total * np.uint64(0xBF58476D1CE4E5B9) + mixed[offset : offset + len(total)]
    return total


def _all_known(values: np.ndarray, length: int) -> np.ndarray:
    known = (values >= 0).astype(np.int64)
    return np.asarray(np.convolve(known, np.ones(length, np.int64), "valid") == length)


def _add_votes(
    votes: list[dict[int, float]], stretches: np.ndarray, lags: np.ndarray, nats: np.ndarray
) -> None:
    """Sum the nats of each (stretch, lag)."""
    if not len(lags):
        return
    pairs, at = np.unique(np.stack([stretches, lags]), axis=1, return_inverse=True)
    sums = np.bincount(at.ravel(), nats)
    for stretch, lag, total in zip(*pairs.tolist(), sums.tolist(), strict=True):
        votes[stretch][lag] = votes[stretch].get(lag, 0.0) + total


def _best(votes: dict[int, float], count: int) -> list[int]:
    return sorted(votes, key=lambda lag: -votes[lag])[:count]


def _choose(votes: list[dict[int, float]], periods: list[int]) -> list[np.ndarray]:
    """Each stretch's best lags, its neighbours', the best of all, and lags near to those."""
    overall: dict[int, float] = {}
    for stretch in votes:
        for lag in _best(stretch, _KEPT):
            overall[lag] = overall.get(lag, 0.0) + stretch[lag]
    common = {0, *_best(overall, _KEPT_OVERALL)}
    own = [_best(stretch, _KEPT) for stretch in votes]
    chosen = []
    for number, lags in enumerate(own):
        wanted = common | set(lags)
        for other in own[max(0, number - 1) : number + 2]:
            wanted |= set(other[:4])
        for lag in lags[:1]:
            wanted |= {lag + step for step in range(-_NEIGHBOURS, _NEIGHBOURS + 1)}
        for period in periods:
            wanted |= {lag + step for lag in [0, *lags[:4]] for step in (-period, period)}
        wanted |= {lag + step for lag in wanted for step in (-1, 1)}  # a foreign dump nearby
        chosen.append(np.array(sorted(wanted), np.int64))
    return chosen
