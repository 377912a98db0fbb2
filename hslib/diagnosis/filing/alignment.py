"""Aligns what was got with what was expected: finds the lags that explain it.

The model is a hidden Markov chain over the samples in order of filing. At each sample the stream
of dumps either has a lag (sample ``i`` holds what was meant for sample ``i - lag``), or it is
unrelated. Within a lag a dump agrees with its source with probability ``1 - NOISE``; all other
dumps are drawn by chance. Dynamic programming (Viterbi) finds the path with the greatest posterior
odds against "all is chance".

**Why the evidence is sound.** A path's score is the log of its prior times its likelihood ratio
against chance. The priors of all paths sum to at most one, so under chance the expected sum over
all paths is at most one. By Markov's inequality the probability that *any* path scores S or more
is then at most exp(-S), however the path was found. This needs no simulation, and no correction
for the number of lags tried: the prior pays for them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hslib.diagnosis.filing.rarity import local_log_p, rarity_of_codes, rarity_of_lengths
from hslib.diagnosis.filing.seeds import candidate_lags

UNALIGNED = np.iinfo(np.int32).min
NOISE = 0.1  # share of dumps in a lag that do not agree with their source
_P_CHANGE, _P_LOSE, _P_FIND = 0.02, 0.005, 0.005  # lag changes; is lost; is found again
_AROUND = 129  # samples
_STRETCH = 256  # samples; each stretch has its own candidate lags


@dataclass(frozen=True)
class Segment:
    """Positions ``start .. stop-1`` hold what was meant for the sample ``lag`` before."""

    start: int
    stop: int
    lag: int
    agreeing: int  # got equals what the source expected
    differing: int  # both known, not equal


@dataclass(frozen=True, eq=False)
class Alignment:
    """The best explanation of ``got`` by ``expected``.

    ``lags`` int32 [N], :data:`UNALIGNED` where nothing fits. ``log_odds``: score in nats, against
    chance. ``decoy_log_odds``: the best score of lengths that were made wrong on purpose.
    """

    lags: np.ndarray
    segments: tuple[Segment, ...]
    log_odds: float
    decoy_log_odds: float = 0.0

    @property
    def chance(self) -> float:
        """Upper bound of the probability of an alignment this good between unrelated sequences."""
        return float(np.exp(-max(0.0, min(self.log_odds, 700.0))))

    @property
    def is_found(self) -> bool:
        """Beyond doubt: under one in 10,000 by chance, and wrong lengths fit far worse."""
        return self.log_odds > 2 * max(0.0, self.decoy_log_odds) + math.log(10_000)

    @property
    def sources(self) -> np.ndarray:
        """int64 [N]: whose dump each position holds; :data:`UNALIGNED` where not known."""
        positions = np.arange(len(self.lags), dtype=np.int64)
        return np.where(self.lags == UNALIGNED, UNALIGNED, positions - self.lags)


def align_lengths(got: np.ndarray, expected: np.ndarray) -> Alignment:
    """Explain lengths got as a shifted, interrupted copy of the lengths expected.

    Args:
        got, expected: int64 [N] tokens, in the order of filing; negative = not known.

    An alignment is tried again with decoys: its lengths, each made a little too large or too
    small. Decoys fit nothing, unless the two sequences are alike for another reason, such as both
    being sorted by length. Then exact agreement is no evidence, and the alignment does not count.
    """
    found = _align_by_chance(got, expected)
    if not found.is_found:
        return found
    covered = np.where(_widened(found.lags != UNALIGNED), got, -1)
    steps = (1, -1, 2, -2, 3, -3, 4, -4) if _is_ordered(got) else (1, -1)
    for step in steps:
        decoy = _align_by_chance(np.where(covered > 4, covered + step, covered), expected)
        found = replace(found, decoy_log_odds=max(found.decoy_log_odds, decoy.log_odds))
        if not found.is_found:
            break  # one good decoy is enough
    return found


def _is_ordered(got: np.ndarray) -> bool:
    """Whether neighbouring lengths are alike; then chance agreements are more likely."""
    known = np.log(got[got > 0])
    if len(known) < 32 or known[:-1].std() == 0 or known[1:].std() == 0:
        return False
    return bool(np.corrcoef(known[:-1], known[1:])[0, 1] > 0.2)


def _widened(where: np.ndarray) -> np.ndarray:
    """bool [N], also True nearby: a decoy must be free to choose where it fits."""
    near = np.convolve(where, np.ones(_AROUND), "same") > 0.5
    return np.asarray(near[: len(where)] if len(where) >= _AROUND else np.ones(len(where), bool))


def _align_by_chance(got: np.ndarray, expected: np.ndarray) -> Alignment:
    rarity = rarity_of_lengths(expected, got)
    return _align(got, expected, -np.maximum(rarity.of(got), local_log_p(got)))


def align_codes(got: np.ndarray, expected: np.ndarray) -> Alignment:
    """The same by ids: equal numbers stand for rows of equal ids."""
    return _align(got, expected, -rarity_of_codes(expected, got).of(got))


def _align(got: np.ndarray, expected: np.ndarray, weights: np.ndarray) -> Alignment:
    """The best path; ``weights`` float64 [N] is -log P(``got`` by chance)."""
    count = len(got)
    if not count:
        return Alignment(np.zeros(0, np.int32), (), 0.0)
    candidates = candidate_lags(got, expected, weights, _STRETCH)
    score, lags = _viterbi(got, expected, weights, candidates)
    segments = tuple(_segments(lags, got, expected))
    return Alignment(lags, segments, score)


def _prior(jump: np.ndarray) -> np.ndarray:
    """log of 1 / 2(|j|+1)(|j|+2): over all whole numbers it sums to less than one."""
    size = np.abs(jump).astype(np.float64)
    return np.asarray(-np.log(2 * (size + 1) * (size + 2)))


def _transitions(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """log P(after | before), [len(after)+1, len(before)+1]; the last state is "unrelated"."""
    jumps = after[:, None].astype(np.int64) - before[None, :]
    moves = np.log(_P_CHANGE) + _prior(jumps)
    moves[jumps == 0] = np.log(1 - _P_CHANGE - _P_LOSE)
    table = np.empty((len(after) + 1, len(before) + 1))
    table[:-1, :-1] = moves
    table[-1, :-1] = np.log(_P_LOSE)
    table[:-1, -1] = np.log(_P_FIND) + _prior(after)
    table[-1, -1] = np.log(1 - _P_FIND)
    return table


def _emissions(
    got: np.ndarray, expected: np.ndarray, weights: np.ndarray, lags: np.ndarray, start: int
) -> np.ndarray:
    """log likelihood ratio against chance, [B, len(lags)+1], of the samples from ``start`` on."""
    stop = min(start + _STRETCH, len(got))
    positions = np.arange(start, stop)
    sources = positions[:, None] - lags[None, :]
    inside = (sources >= 0) & (sources < len(expected))
    meant = np.where(inside, expected[np.clip(sources, 0, len(expected) - 1)], -1)
    here = got[start:stop, None]
    agrees = np.log((1 - NOISE) * np.exp(weights[start:stop, None]) + NOISE)
    ratios = np.where(meant == here, agrees, np.log(NOISE))
    ratios[(meant < 0) | (here < 0)] = 0.0  # not known: says nothing
    return np.hstack([ratios, np.zeros((len(positions), 1))])


def _viterbi(
    got: np.ndarray, expected: np.ndarray, weights: np.ndarray, candidates: list[np.ndarray]
) -> tuple[float, np.ndarray]:
    """The best path's score and its lag at each position."""
    first = candidates[0]
    start = np.log(0.5) + np.append(_prior(first), 0.0)
    best = start
    came_from: list[np.ndarray] = []
    for number, lags in enumerate(candidates):
        ratios = _emissions(got, expected, weights, lags, number * _STRETCH)
        entering = _transitions(candidates[number - 1], lags) if number else None
        within = _transitions(lags, lags)
        states = np.arange(len(lags) + 1)
        for row, gains in enumerate(ratios):
            if row == 0 and entering is None:
                came_from.append(states)
                best = start + gains
                continue
            paths = (within if row else entering) + best
            origin = paths.argmax(axis=1)
            came_from.append(origin.astype(np.int16))
            best = paths[states, origin] + gains
    return float(best.max()), _settled(_trace(best, came_from, candidates), got, expected)


def _trace(
    best: np.ndarray, came_from: list[np.ndarray], candidates: list[np.ndarray]
) -> np.ndarray:
    found = np.empty(len(came_from), np.int32)
    state = int(best.argmax())
    for position in range(len(came_from) - 1, -1, -1):
        lags = candidates[position // _STRETCH]
        found[position] = UNALIGNED if state == len(lags) else lags[state]
        state = int(came_from[position][state])
    return found


def _settled(lags: np.ndarray, got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Of equally good paths, the one whose lag grows exactly at the foreign dump.

    A foreign dump agrees with neither source, so the path may put it before or after the change
    of lag that it caused.
    """
    lags = lags.copy()
    for edge in (np.flatnonzero(np.diff(lags)) + 1).tolist():
        old, new = int(lags[edge - 1]), int(lags[edge])
        at = edge - 1
        while UNALIGNED not in (old, new) and new > old and edge - at <= new - old and at >= 0:
            source = at - old
            meant = expected[source] if 0 <= source < len(expected) else -1
            other = at - new
            unknown_there = not 0 <= other < len(expected) or expected[other] < 0
            if lags[at] != old or got[at] < 0 or meant in (-1, got[at]) or unknown_there:
                break
            lags[at] = new
            at -= 1
    return lags


def _segments(lags: np.ndarray, got: np.ndarray, expected: np.ndarray) -> Iterator[Segment]:
    """Runs of one lag."""
    edges = np.flatnonzero(np.diff(lags)) + 1
    for start, stop in zip([0, *edges], [*edges, len(lags)], strict=True):
        lag = int(lags[start])
        if lag == UNALIGNED:
            continue
        positions = np.arange(start, stop)
        sources = positions - lag
        known = (sources >= 0) & (sources < len(expected))
        meant = np.where(known, expected[np.clip(sources, 0, len(expected) - 1)], -1)
        here = got[start:stop]
        both = (meant >= 0) & (here >= 0)
        agreeing = int((both & (meant == here)).sum())
        yield Segment(int(start), int(stop), lag, agreeing, int(both.sum()) - agreeing)
