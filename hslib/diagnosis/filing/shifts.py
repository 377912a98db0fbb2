"""Dumps filed under other samples: shifts, foreign dumps, strides, permutations."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hslib.diagnosis.filing.alignment import (
    UNALIGNED,
    Alignment,
    Segment,
    align_codes,
    align_lengths,
)
from hslib.diagnosis.filing.finding import Finding, ranges
from hslib.diagnosis.filing.observations import Observations

_FOREIGN_MAX = 8  # tokens; warm-ups and health checks are as short
_FAR = 48  # samples from a change of lag to the short dump that caused it
_STRIDES = (2, 4, 8, 3)
_STRIDE_SAMPLES = 2000
_SHOWN_SEGMENTS = 5


@dataclass(frozen=True, eq=False)
class Filing:
    """Whose states each sample holds, as far as the alignment knows.

    ``holds`` int64 [N]: sample index, :data:`UNALIGNED` where not known. ``misfiled`` bool [N]:
    another sample's, even where the lengths happen to be equal. ``foreign`` bool [N]: no sample's.
    """

    alignment: Alignment
    holds: np.ndarray
    misfiled: np.ndarray
    foreign: np.ndarray
    by_ids: bool


def align(observed: Observations) -> Alignment:
    """By ids where both sides have them, else by lengths."""
    if observed.expected_ids is not None and observed.got_ids is not None:
        return align_codes(observed.got_ids, observed.expected_ids)
    return align_lengths(observed.got, observed.expected)


def file_by(observed: Observations, alignment: Alignment) -> Filing:
    """Turn lags into samples, and find the foreign dumps that caused them. Pure."""
    first = int(observed.indices[0]) if len(observed) else 0
    nothing = np.zeros(len(observed), bool)
    foreign, misfiled = nothing.copy(), nothing.copy()
    if alignment.is_found:
        foreign = _foreign(observed, alignment)
        shifted = (alignment.lags != UNALIGNED) & (alignment.lags != 0)
        misfiled = shifted & ~foreign & (observed.got > 0)
    sources = alignment.sources
    holds = np.where((sources == UNALIGNED) | foreign, UNALIGNED, sources + first)
    by_ids = observed.expected_ids is not None and observed.got_ids is not None
    return Filing(alignment, holds, misfiled, foreign, by_ids)


def _foreign(observed: Observations, alignment: Alignment) -> np.ndarray:
    """Where the lag grows by m: the m nearest dumps that agree with no source.

    Among equal lengths the place of a change is not known exactly. Foreign dumps are mostly
    short, so short ones are searched farther away than long ones.
    """
    segments = alignment.segments
    found = np.zeros(len(observed), bool)
    differs = _differs_from_source(observed, alignment)
    for before, after in pairwise(segments):
        grown = after.lag - before.lag
        if grown <= 0:
            continue
        reach = grown + _FAR
        low, high = max(before.start, after.start - reach), min(after.stop, after.start + reach)
        strange = low + np.flatnonzero(differs[low:high])
        is_long = observed.got[strange] > _FOREIGN_MAX
        distance = np.abs(strange - after.start + 0.25)  # of two equally near, the later
        order = np.lexsort((distance, is_long))
        is_likely = ~is_long | (distance <= grown)
        found[strange[order][is_likely[order]][:grown]] = True
    return found


def _differs_from_source(observed: Observations, alignment: Alignment) -> np.ndarray:
    sources = alignment.sources
    known = (sources >= 0) & (sources < len(observed))
    meant = np.where(known, observed.expected[np.clip(sources, 0, len(observed) - 1)], -1)
    agrees = meant == observed.got
    if observed.expected_ids is not None and observed.got_ids is not None:
        ids = observed.expected_ids[np.clip(sources, 0, len(observed) - 1)]
        agrees = known & (ids == observed.got_ids)
    return np.asarray((observed.got > 0) & ~agrees & ((meant > 0) | ~known))


def shift_findings(observed: Observations, filing: Filing) -> list[Finding]:
    """The shift, and the foreign dumps that caused it; empty when all is in place."""
    found, chance = [], filing.alignment.chance
    if filing.misfiled.any():
        text = _shift_evidence(observed, filing)
        found.append(Finding("shift", observed.indices[filing.misfiled], text, chance))
    if filing.foreign.any():
        where = np.flatnonzero(filing.foreign)
        shown = [f"{observed.got[p]}-token dump at {observed.indices[p]}" for p in where[:5]]
        more = f" and {len(where) - 5} more" if len(where) > 5 else ""
        text = f"the lag grows there: {', '.join(shown)}{more}"
        found.append(Finding("foreign", observed.indices[where], text, chance))
    return found


def _shift_evidence(observed: Observations, filing: Filing) -> str:
    shifted = [segment for segment in filing.alignment.segments if segment.lag]
    parts = [_segment_words(observed, filing, s) for s in shifted[:_SHOWN_SEGMENTS]]
    if len(shifted) > _SHOWN_SEGMENTS:
        lags = [s.lag for s in shifted]
        parts.append(f"... {len(shifted)} stretches in all, lags {min(lags)} to {max(lags)}")
    hidden = int((filing.misfiled & ~observed.mismatched & observed.compared).sum())
    if hidden and not filing.by_ids:
        parts.append(
            f"{hidden} of these look right, since their lengths happen to equal their source's"
        )
    how = "proven by the ids' digests" if filing.by_ids else "by exact agreement of lengths"
    return f"{how}: " + "; ".join(parts)


def _segment_words(observed: Observations, filing: Filing, segment: Segment) -> str:
    inside = np.arange(segment.start, segment.stop)
    foreign = inside[filing.foreign[inside]]
    own = observed.indices[inside[~filing.foreign[inside]]]
    if not len(own):
        return f"a foreign dump at {ranges(observed.indices[foreign])}"
    holds = f"{ranges(own)} hold{'s' * (len(own) == 1)} {ranges(own - segment.lag)}"
    differing = segment.differing - len(foreign)
    agreed = f"{segment.agreeing} agree" + (f", {differing} differ" if differing > 0 else "")
    unseen = len(own) - segment.agreeing - max(0, differing)
    agreed += f", {unseen} not in the log" if unseen > 0 else ""
    before = ""
    if len(foreign) and inside[0] == foreign[0]:
        length = observed.got[foreign[0]]
        before = f", after a foreign {length}-token dump at {observed.indices[foreign[0]]}"
    return f"lag {segment.lag}{before}: {holds} ({agreed})"


def stride_finding(observed: Observations, rival: Alignment) -> Finding | None:
    """Several writers with one counter each: only every s-th dump came, or each came s times.

    Tried on the first two thousand samples; must explain them better than ``rival`` does.
    """
    got, expected = observed.got[:_STRIDE_SAMPLES], observed.expected
    rival_odds = max(0.0, rival.log_odds) * len(got) / max(1, len(observed))
    for stride in _STRIDES:
        tried = [
            option for rest in range(stride) for option in _strided(got, expected, stride, rest)
        ]
        odds, code, text = max(tried)
        if odds > rival_odds:
            samples = observed.indices[observed.mismatched]
            return Finding(code, samples, text, float(np.exp(-min(odds, 700))))
    return None


def _strided(
    got: np.ndarray, expected: np.ndarray, stride: int, rest: int
) -> list[tuple[float, str, str]]:
    """(log odds, code, words) of both explanations; minus infinity when not found."""
    mine, each = expected[rest::stride], got[rest::stride]
    skipping = align_lengths(got[: len(mine)], mine)
    repeating = align_lengths(each, expected[: len(each)])
    skips = f"sample i holds what was meant for sample {stride} i + {rest}"
    repeats = f"each dump serves {stride} samples in a row"
    return [
        (found.log_odds if found.is_found else -np.inf, code, text)
        for found, code, text in (
            (skipping, "data_parallel", skips),
            (repeating, "every_dump_twice", repeats),
        )
    ]


def permutation_finding(observed: Observations) -> Finding | None:
    """The same lengths (or ids) in another order.

    What comes is mostly drawn from the urn of what is expected, *without replacement*. The
    evidence is the likelihood ratio against drawing with replacement, multiplied in order of
    filing. Under chance it is a martingale, so it exceeds S with a probability below 1/S.
    """
    got, expected = observed.got, observed.expected
    if observed.expected_ids is not None and observed.got_ids is not None:
        got, expected = observed.got_ids, observed.expected_ids
    there = (got > 0) & (expected > 0)
    log_odds = _urn_log_odds(got[there], expected[there])
    if log_odds < np.log(1000):
        return None
    samples = observed.indices[observed.mismatched]
    overlap = _overlap(got[there], expected[there])
    text = f"{overlap:.0%} of what came is what was expected of some sample, each used once"
    return Finding("permutation", samples, text, float(np.exp(-min(log_odds, 700))))


def _overlap(got: np.ndarray, expected: np.ndarray) -> float:
    values, counts = np.unique(expected, return_counts=True)
    left = dict(zip(values.tolist(), counts.tolist(), strict=True))
    hits = 0
    for value in got.tolist():
        if left.get(value, 0):
            left[value] -= 1
            hits += 1
    return hits / max(1, len(got))


def _urn_log_odds(got: np.ndarray, expected: np.ndarray, noise: float = 0.05) -> float:
    both = np.concatenate([got, expected])
    values, counts = np.unique(both, return_counts=True)
    chance = dict(zip(values.tolist(), (counts / len(both)).tolist(), strict=True))
    values, counts = np.unique(expected, return_counts=True)
    left = dict(zip(values.tolist(), counts.tolist(), strict=True))
    remaining, total = len(expected), 0.0
    for value in got.tolist():
        here = left.get(value, 0)
        p = chance[value]
        total += float(np.log((1 - noise) * here / remaining + noise * p) - np.log(p))
        if here:
            left[value] = here - 1
            remaining -= 1
        if not remaining:
            break
    return total
