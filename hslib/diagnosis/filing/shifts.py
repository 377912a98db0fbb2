"""Dumps filed under other samples: shifts, foreign dumps, strides, permutations."""

import math
from dataclasses import dataclass

import numpy as np

from hslib.diagnosis.filing.alignment import (
    FOUND,
    UNALIGNED,
    Alignment,
    Segment,
    align_codes,
    align_lengths,
    evidence_of_lengths,
)
from hslib.diagnosis.filing.counts import FOREIGN_TOKENS
from hslib.diagnosis.filing.finding import Finding, ranges
from hslib.diagnosis.filing.observations import Observations

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
    return align_lengths(observed.got, observed.expected, observed.silent)


def file_by(observed: Observations, alignment: Alignment) -> Filing:
    """Turn lags into samples, and find the foreign dumps that caused them. Pure."""
    foreign = misfiled = certain = np.zeros(len(observed), bool)
    if alignment.is_found:
        is_short = np.isin(observed.got, FOREIGN_TOKENS) & alignment.shifted
        foreign = (alignment.foreign & (observed.got > 0)) | (is_short & ~alignment.agrees)
        misfiled = alignment.shifted & ~foreign & (observed.got > 0)
        certain = alignment.certain & ~foreign
    first = int(observed.indices[0]) if len(observed) else 0
    holds = np.where(certain, alignment.sources + first, UNALIGNED)
    by_ids = observed.expected_ids is not None and observed.got_ids is not None
    return Filing(alignment, holds, misfiled, foreign, by_ids)


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
    how = "proven by the ids' digests" if filing.by_ids else "by exact agreement of lengths"
    return f"{how}: " + "; ".join(parts) + _hidden_words(observed, filing)


def _hidden_words(observed: Observations, filing: Filing) -> str:
    """What lengths leave open: samples that look right, and owners that are not decided."""
    hidden = int((filing.misfiled & ~observed.mismatched & observed.compared).sum())
    silent = int((filing.alignment.shifted & observed.silent).sum())
    undecided = int((filing.misfiled & (filing.holds == UNALIGNED)).sum())
    text = ""
    if hidden and not filing.by_ids:
        text += f". {hidden} of these look right: they hold another sample of the same length"
    if silent and filing.alignment.is_found:
        text += (
            f". {silent} more in these stretches have no line in the log: their lengths look right"
        )
    if undecided:
        text += (
            f". Whose states {undecided} of them hold is undecided: the length fits several "
            "samples, or none that the log names"
        )
    return text


def _segment_words(observed: Observations, filing: Filing, segment: Segment) -> str:
    inside = np.arange(segment.start, segment.stop)
    foreign = inside[filing.foreign[inside]]
    own = inside[~filing.foreign[inside] & ~observed.silent[inside]]
    if not len(own):
        return f"lag {segment.lag} at {ranges(observed.indices[inside])}"
    differing = segment.differing - len(foreign)
    words = f"{segment.agreeing} of {len(own)} agree"
    words += f", {differing} differ" if differing > 0 else ""
    unseen = len(own) - segment.agreeing - max(0, differing)
    words += f", {unseen} can't be seen in the log" if unseen > 0 else ""
    before = ""
    if len(foreign) and inside[0] == foreign[0]:
        length = observed.got[foreign[0]]
        before = f" after a foreign {length}-token dump at {observed.indices[foreign[0]]}"
    sure = own[filing.holds[own] != UNALIGNED]
    example = ""
    if len(sure):
        example = f", for example {observed.indices[sure[0]]} holds {filing.holds[sure[0]]}'s"
    return f"lag {segment.lag} at {ranges(observed.indices[own])}{before} ({words}{example})"


def stride_finding(observed: Observations, rival: Alignment) -> Finding | None:
    """Several writers with one counter each: only every s-th dump came, or each came s times.

    Tried on the first two thousand samples; must explain them better than ``rival`` does.
    """
    got, expected = observed.got[:_STRIDE_SAMPLES], observed.expected
    options = [
        option
        for stride in _STRIDES
        for rest in range(stride)
        for option in _strided(got, expected, stride, rest)
    ]
    odds, code, text = max(options)
    odds -= math.log(len(options))
    share = len(got) / max(1, len(observed))
    if odds < max(FOUND, rival.evidence * share):
        return None
    samples = observed.indices[observed.mismatched]
    return Finding(code, samples, text, float(np.exp(-min(odds, 700))))


def _strided(
    got: np.ndarray, expected: np.ndarray, stride: int, rest: int
) -> list[tuple[float, str, str]]:
    """(nats of evidence, code, words) of both explanations."""
    mine, each = expected[rest::stride], got[rest::stride]
    skipping = evidence_of_lengths(got[: len(mine)], mine)
    repeating = evidence_of_lengths(each, expected[: len(each)])
    skips = f"sample i holds what was meant for sample {stride} i + {rest}"
    repeats = f"each dump serves {stride} samples in a row"
    return [(skipping, "data_parallel", skips), (repeating, "every_dump_twice", repeats)]


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
    half = np.flatnonzero(there)[: there.sum() // 2]
    if log_odds < FOUND or _urn_log_odds(got[half], expected[half]) > 0:
        return None  # what comes first is what is expected first: the order is kept
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
