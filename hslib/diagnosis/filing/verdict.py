"""From observations to a verdict: the causes, their samples, how sure it is, and the cure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hslib.diagnosis.catalogue import UNKNOWN_CAUSE
from hslib.diagnosis.filing import counts
from hslib.diagnosis.filing.finding import Finding, ranges
from hslib.diagnosis.filing.observations import UNKNOWN, Observations
from hslib.diagnosis.filing.shifts import (
    Filing,
    align,
    file_by,
    permutation_finding,
    shift_findings,
    stride_finding,
)
from hslib.diagnosis.rows import Rows

_MIX_SHARE = 0.05  # a cause with a smaller share does not make a mix


@dataclass(frozen=True, eq=False)
class Verdict:
    """Findings, greatest first; the finding ``unknown`` holds what no cause explains."""

    findings: tuple[Finding, ...]
    num_compared: int
    num_mismatched: int

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(finding.code for finding in self.findings)

    @property
    def is_mix(self) -> bool:
        """Whether more than one known cause has at least 5 % of the samples."""
        total = max(1, sum(len(f.samples) for f in self.findings))
        known = [f for f in self.findings if f.code not in (UNKNOWN_CAUSE, "foreign")]
        return sum(len(f.samples) >= _MIX_SHARE * total for f in known) > 1

    @property
    def main(self) -> str:
        """The code of the greatest known cause; ``"none"`` when nothing differs."""
        known = [code for code in self.codes if code != UNKNOWN_CAUSE]
        if known:
            return known[0]
        return UNKNOWN_CAUSE if self.findings else "none"

    def sentences(self) -> list[str]:
        """The verdict in words: what, where, how sure, and what to do."""
        if not self.num_compared:
            return ["No sample can be compared: neither got nor expected lengths are known."]
        if not self.findings:
            return [f"All {self.num_compared} compared samples agree; nothing to cure."]
        return [self._headline(), *map(_paragraph, self.findings)]

    def _headline(self) -> str:
        kinds = list(dict.fromkeys(f.cause.kind for f in self.findings if f.code != UNKNOWN_CAUSE))
        count = f"{self.num_mismatched} of {self.num_compared} compared samples differ"
        if not kinds:
            return f"UNKNOWN: {count}, and nothing that this kit knows explains them."
        word = "A MIX of " + " and ".join(kinds) if self.is_mix else kinds[0].upper()
        if kinds[0] == "synchronisation" and "tokenizer" not in kinds:
            word += ", not the tokenizer"
        return f"{word}: {count}."


def _paragraph(finding: Finding) -> str:
    count = len(finding.samples)
    chance = "" if finding.chance is None else f" By chance: {_odds(finding.chance)}."
    where = f"{count} sample{'s' * (count != 1)} ({ranges(finding.samples)})"
    return (
        f"{finding.code}: {where}: {finding.cause.title}.\n"
        f"  Evidence: {finding.evidence}.{chance}\n"
        f"  Cure: {finding.cause.cure}."
    )


def _odds(chance: float) -> str:
    if chance >= 0.001:
        return f"{chance:.2g}"
    if chance < 1e-12:
        return "less than one in 10^12"
    exponent = int(np.floor(-np.log10(chance)))
    return f"less than one in {10**exponent:,}"


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """A verdict with what it rests on."""

    observed: Observations
    filing: Filing
    verdict: Verdict


def diagnose_counts(observed: Observations, rows: Rows | None = None) -> Diagnosis:
    """Explain lengths that differ (and ids, where both sides have them)."""
    if rows is not None:
        digests = rows.digests() if observed.got_ids is not None else None
        observed = observed.with_rows(rows.lengths, digests)
    observed = _counted_from_first(observed)
    filing = file_by(observed, align(observed))
    findings = shift_findings(observed, filing)
    open_ = observed.mismatched & ~filing.misfiled & ~filing.foreign
    order = _whole_order(observed, filing, open_)
    if order:
        findings, open_ = [order], np.zeros_like(open_)
    findings += _by_counts(observed, rows, open_)
    known = np.concatenate([f.samples for f in findings]) if findings else np.zeros(0, np.int64)
    left = np.setdiff1d(observed.indices[observed.mismatched], known)
    if len(left):
        findings.append(Finding(UNKNOWN_CAUSE, left, _examples(observed, left)))
    return Diagnosis(observed, filing, verdict_of(findings, observed))


def _counted_from_first(observed: Observations) -> Observations:
    """Takes the first lag out where a server's own counter named the dumps.

    Such a counter starts anywhere, so the lag of its first dump is no fault.
    """
    if observed.has_places:
        return observed
    segments = align(observed).segments
    lag = segments[0].lag if segments else 0
    if lag == 0:
        return observed
    moved = np.full(len(observed), UNKNOWN)
    ids = None if observed.got_ids is None else moved.copy()
    to = np.arange(len(observed)) - lag
    inside = (to >= 0) & (to < len(observed))
    moved[to[inside]] = observed.got[inside]
    if ids is not None and observed.got_ids is not None:
        ids[to[inside]] = observed.got_ids[inside]
    return replace(observed, got=moved, got_ids=ids)


def _whole_order(observed: Observations, filing: Filing, open_: np.ndarray) -> Finding | None:
    """A stride or a permutation, where most samples are wrong and no few lags explain it."""
    mismatched = observed.mismatched
    many = mismatched.sum() >= 0.5 * max(1, observed.compared.sum()) and mismatched.sum() >= 8
    stretches = sum(1 for segment in filing.alignment.segments if segment.lag)
    ragged = stretches > len(observed) / 20
    if not many or (open_.sum() < 0.4 * mismatched.sum() and not ragged):
        return None
    finding = stride_finding(observed, filing.alignment)
    if finding is None and not filing.misfiled.any():
        finding = permutation_finding(observed)
    return finding


def _by_counts(observed: Observations, rows: Rows | None, open_: np.ndarray) -> list[Finding]:
    """Causes by lengths, one after another; what is explained is closed for later ones."""
    found = []
    open_ = open_ & (observed.expected != observed.got)
    if rows is not None and len(rows):
        cached = counts.cached_prefixes(rows, observed.indices, observed.got, open_)
        if cached is not None:
            found.append(Finding("prefix_cache", observed.indices[cached.where], cached.evidence))
            open_ = open_ & ~cached.where
    for code, detector in counts.DETECTORS:
        explained = detector(observed.expected, observed.got, open_)
        if explained is not None:
            samples = observed.indices[explained.where]
            found.append(Finding(code, samples, explained.evidence))
            open_ = open_ & ~explained.where
    return found


def _examples(observed: Observations, samples: np.ndarray, shown: int = 3) -> str:
    first = int(observed.indices[0])
    parts = [
        f"sample {index} got {observed.got[index - first]}, "
        f"expected {observed.expected[index - first]}"
        for index in samples[:shown].tolist()
    ]
    return "for example " + "; ".join(parts)


def verdict_of(findings: Sequence[Finding], observed: Observations) -> Verdict:
    """Order findings by size; findings of one code become one. Pure."""
    merged: dict[str, Finding] = {}
    for finding in findings:
        known = merged.get(finding.code)
        if known is None:
            merged[finding.code] = finding
            continue
        samples = np.union1d(known.samples, finding.samples)
        text = f"{known.evidence}; {finding.evidence}"
        merged[finding.code] = replace(known, samples=samples, evidence=text)
    ordered = sorted(merged.values(), key=lambda f: (f.code == UNKNOWN_CAUSE, -len(f.samples)))
    wrong = np.concatenate([f.samples for f in ordered]) if ordered else np.zeros(0, np.int64)
    compared = int((observed.compared | (observed.got > 0)).sum())
    return Verdict(tuple(ordered), compared, len(np.unique(wrong)))
