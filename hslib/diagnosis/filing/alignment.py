"""Aligns what was got with what was expected: finds the lags that explain it.

The model is a hidden Markov chain over the samples in order of filing. At each sample the stream
of dumps either has a lag (sample ``i`` holds what was meant for sample ``i - lag``), or it is
unrelated. Within a lag a dump agrees with its source with probability ``1 - NOISE``; all other
dumps are drawn by chance. A lag that changes costs a small probability, so the simplest story
wins. The forward-backward algorithm sums over *all* paths: it gives each lag's posterior
probability at each sample, so that lengths that fit two stories leave the owner undecided.

**Why the evidence is sound.** Evidence is the log of a likelihood ratio: all stories together
against those without a shift. Its expectation is at most one where nothing is shifted, so by
Markov's inequality it reaches ``S`` nats by chance with a probability of at most exp(-S). The lags
and starts that were tried need no correction: the prior pays for them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hslib.diagnosis.filing.chain import NOISE, STRETCH, Chain, Sequences
from hslib.diagnosis.filing.rarity import local_log_p, rarity_of_codes, rarity_of_lengths
from hslib.diagnosis.filing.seeds import candidate_lags, repeats

UNALIGNED = np.iinfo(np.int32).min
FOUND = math.log(10_000)  # nats; less is no evidence
_PROBABLE, _DECIDED, _CERTAIN = 0.9, 0.99, 0.999  # where lengths say nothing; lag; owner
_MAX_NOISE = 0.2  # of a stretch's dumps; beyond it no owner is certain
_NEAR = 8  # samples from a source; equal lengths there leave the owner open


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
    """What explains ``got`` by ``expected``.

    ``lags`` int32 [N]: :data:`UNALIGNED` where none is probable. ``agrees`` bool [N]: what came
    is what the source expected. ``certain`` bool [N]: and no other sample comes into question as
    its owner. ``shifted`` bool [N]: the lag is not 0, whichever it is. ``foreign`` bool [N]: no
    sample's dump, after which the lag is greater by one.
    ``evidence``: nats against chance; ``log_odds``: nats against "nothing is shifted";
    ``potential``: nats, if all had agreed at one lag; ``decoy``: the greatest ``log_odds`` of
    lengths that were made wrong on purpose.
    """

    lags: np.ndarray
    segments: tuple[Segment, ...]
    agrees: np.ndarray
    certain: np.ndarray
    shifted: np.ndarray
    foreign: np.ndarray
    evidence: float
    log_odds: float
    potential: float
    decoy: float = 0.0

    @property
    def chance(self) -> float:
        """Upper bound of the probability of such a shift where nothing is shifted."""
        return float(np.exp(-max(0.0, min(self.log_odds, 700.0))))

    @property
    def is_found(self) -> bool:
        """Whether something is shifted: under one in 10,000 by chance."""
        return self.log_odds > FOUND + 2 * self.decoy

    @property
    def is_decidable(self) -> bool:
        """Whether so few lengths, or lengths so alike, could prove anything."""
        return self.potential > 2 * FOUND

    @property
    def sources(self) -> np.ndarray:
        """int64 [N]: whose dump each position holds; :data:`UNALIGNED` where not known."""
        positions = np.arange(len(self.lags), dtype=np.int64)
        return np.where(self.lags == UNALIGNED, UNALIGNED, positions - self.lags)


def align_lengths(
    got: np.ndarray, expected: np.ndarray, silent: np.ndarray | None = None
) -> Alignment:
    """Explain lengths got as a shifted, interrupted copy of the lengths expected.

    Args:
        got, expected: int64 [N] tokens, in the order of filing; negative = not known.
        silent: bool [N], samples of which only this is known: both are equal.

    Where neighbouring lengths are alike, two unrelated sequences agree often. There it is tried
    again with decoys: lengths that are made a little too large or too small. A decoy that fits
    shows that exact agreement is no evidence.
    """
    found = _align_by_chance(got, expected, silent)
    steps = (1, -1, 2, -2, 3, -3, 4, -4) if _is_ordered(got) else ()
    for step in steps:
        if not found.is_found:
            break  # one good decoy is enough
        decoy = _align_by_chance(np.where(got > 4, got + step, got), expected, silent)
        found = replace(found, decoy=max(found.decoy, decoy.log_odds))
    return found


def _is_ordered(got: np.ndarray) -> bool:
    """Whether neighbouring lengths are alike, as in a dataset sorted by length."""
    known = np.log(got[got > 0])
    if len(known) < 32 or known[:-1].std() == 0 or known[1:].std() == 0:
        return False
    return bool(np.corrcoef(known[:-1], known[1:])[0, 1] > 0.2)


def _align_by_chance(got: np.ndarray, expected: np.ndarray, silent: np.ndarray | None) -> Alignment:
    return _align(_by_lengths(got, expected, silent))


def evidence_of_lengths(got: np.ndarray, expected: np.ndarray) -> float:
    """Nats of evidence that the two agree at some lag, 0 included."""
    return _chain(_by_lengths(got, expected)).evidence if len(got) else 0.0


def _by_lengths(
    got: np.ndarray, expected: np.ndarray, silent: np.ndarray | None = None
) -> Sequences:
    """A line of a log of mismatches shows that the two differ: of two lengths, it is the other."""
    rarity = rarity_of_lengths(expected, got)
    log_p = np.maximum(rarity.of(got), local_log_p(got))
    if silent is not None and silent.any():
        others = np.log1p(-np.exp(np.minimum(rarity.of(expected), -1e-9)))
        log_p = np.where((got > 0) & (expected > 0), np.minimum(log_p - others, 0.0), log_p)
    return Sequences(got, expected, log_p, silent)


def align_codes(got: np.ndarray, expected: np.ndarray) -> Alignment:
    """The same by ids: equal numbers stand for rows of equal ids."""
    return _align(Sequences(got, expected, rarity_of_codes(expected, got).of(got)))


def _align(sequences: Sequences) -> Alignment:
    count = len(sequences.got)
    if not count:
        nowhere = np.zeros(0, bool)
        return Alignment(np.zeros(0, np.int32), (), nowhere, nowhere, nowhere, nowhere, 0, 0, 0)
    chain = _chain(sequences)
    unshifted = Chain(sequences, [np.zeros(1, np.int64)] * len(chain.candidates)).evidence
    lags, probability = _probable(chain)
    known, agrees = _agreements(lags, sequences)
    foreign = chain.foreign > 0.5
    lags[known & ~foreign & (probability < _DECIDED)] = UNALIGNED
    spoken = np.flatnonzero(sequences.got >= 0)
    lags[: spoken.min(initial=len(lags))] = lags[spoken.max(initial=-1) + 1 :] = UNALIGNED
    agrees &= lags != UNALIGNED
    segments = tuple(_segments(lags, sequences))
    return Alignment(
        lags,
        segments,
        agrees,
        certain=_certain(probability, lags, agrees, foreign, sequences),
        shifted=chain.shifted > 0.99,
        foreign=foreign,
        evidence=chain.evidence,
        log_odds=chain.evidence - unshifted,
        potential=float(-sequences.log_p[sequences.got >= 0].sum()),
    )


def _chain(sequences: Sequences) -> Chain:
    weights = -sequences.log_p
    return Chain(sequences, candidate_lags(sequences.got, sequences.expected, weights, STRETCH))


def _probable(chain: Chain) -> tuple[np.ndarray, np.ndarray]:
    """Lags int32 [N], and how probable the best one is, float64 [N]."""
    lags, probability = [], []
    for options, posterior in zip(chain.candidates, chain.posterior, strict=True):
        best = posterior.argmax(axis=1)
        probability.append(posterior.max(axis=1))
        lags.append(
            np.where(probability[-1] > _PROBABLE, np.append(options, UNALIGNED)[best], UNALIGNED)
        )
    return np.concatenate(lags).astype(np.int32), np.concatenate(probability)


def _agreements(lags: np.ndarray, sequences: Sequences) -> tuple[np.ndarray, np.ndarray]:
    """(both known, equal) under each position's own lag, bool [N] each."""
    known, equal = np.zeros(len(lags), bool), np.zeros(len(lags), bool)
    for lag in np.unique(lags[lags != UNALIGNED]).tolist():
        here = lags == lag
        known[here], equal[here] = (found[here] for found in sequences.agreement(lag))
    return known, equal


def _certain(
    probability: np.ndarray,
    lags: np.ndarray,
    agrees: np.ndarray,
    foreign: np.ndarray,
    sequences: Sequences,
) -> np.ndarray:
    """Where neither another lag, nor a neighbour of the source, nor an accident is possible."""
    certain = agrees & (probability > _CERTAIN)
    if repeats(sequences.expected):
        return np.zeros_like(certain)  # one period is like another
    for lag in np.unique(lags[certain]).tolist():
        here = (lags == lag) & ~foreign
        known, equal = sequences.agreement(lag)
        differing = int((here & known & ~equal).sum())
        noise = (differing + NOISE) / (int((here & known).sum()) + 1)
        accident = noise / (1 - noise) * np.exp(sequences.log_p)
        is_sound = (accident < 1 - _CERTAIN) & (noise < _MAX_NOISE)
        certain[here] &= is_sound[here] & ~_has_twin(*sequences.meant(lag))[here]
    return certain


def _has_twin(meant: np.ndarray, is_open: np.ndarray) -> np.ndarray:
    """bool [N]: a sample near the source expected the same length, or may have."""
    found = np.zeros(len(meant), bool)
    for step in range(1, min(_NEAR + 1, len(meant))):
        alike = (meant[step:] == meant[:-step]) & (meant[step:] >= 0)
        found[step:] |= alike | is_open[:-step]
        found[:-step] |= alike | is_open[step:]
    return found


def _segments(lags: np.ndarray, sequences: Sequences) -> Iterator[Segment]:
    """Runs of one lag."""
    edges = np.flatnonzero(np.diff(lags)) + 1
    for start, stop in zip([0, *edges], [*edges, len(lags)], strict=True):
        lag = int(lags[start])
        if lag == UNALIGNED:
            continue
        known, equal = sequences.agreement(lag)
        agreeing = int(equal[start:stop].sum())
        differing = int(known[start:stop].sum()) - agreeing
        yield Segment(int(start), int(stop), lag, agreeing, differing)
