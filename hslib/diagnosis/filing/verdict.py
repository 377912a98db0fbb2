"""From observations to a verdict: the causes, their samples, how sure it is, and the cure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hslib.diagnosis.catalogue import OTHER_DATASET, UNKNOWN_CAUSE
from hslib.diagnosis.filing import counts
from hslib.diagnosis.filing.finding import Finding, merged, ranges
from hslib.diagnosis.filing.observations import UNKNOWN, Observations
from hslib.diagnosis.filing.seeds import repeats
from hslib.diagnosis.filing.shifts import (
    Filing,
    align,
    file_by,
    permutation_finding,
    shift_findings,
    stride_finding,
)
from hslib.diagnosis.rows import DatasetRows

_MIX_SHARE = 0.05  # a cause with a smaller share does not make a mix
_MISFIT_SHARE = 0.1  # of expected lengths that differ from the dataset's: it is another one
_LEAST_MISFITS = 3  # a row or two may have been edited since
_SHOWN = 3
_EXPLAINED = {"unknown": "unexplained", "synchronisation": "explained by synchronisation"}


@dataclass(frozen=True, eq=False)
class Verdict:
    """Findings, greatest first; the finding ``unknown`` holds what no cause explains.

    A finding ``other_dataset`` is the last one: it is of the log, and explains no sample.
    ``by_ids``: what a comparison of ids says of all samples, "" where there was none; its findings
    come first, and are of the kind ``dataset``.
    """

    findings: tuple[Finding, ...]
    num_compared: int
    num_mismatched: int
    is_decidable: bool = True  # whether the lengths could prove anything
    by_ids: str = ""

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(finding.code for finding in self.findings)

    @property
    def by_kind(self) -> dict[str, int]:
        """Samples of each kind of cause, most first."""
        counts: dict[str, int] = {}
        for finding in self.findings:
            if finding.code != OTHER_DATASET:
                kind = finding.cause.kind
                counts[kind] = counts.get(kind, 0) + len(finding.samples)
        return dict(sorted(counts.items(), key=lambda item: -item[1]))

    @property
    def is_mix(self) -> bool:
        """Whether more than one known cause has at least 5 % of the samples."""
        counts = {f.code: len(f.samples) for f in self.findings if f.code != OTHER_DATASET}
        total = max(1, sum(counts.values()))
        known = [n for code, n in counts.items() if code not in (UNKNOWN_CAUSE, "foreign")]
        return sum(n >= _MIX_SHARE * total for n in known) > 1

    @property
    def main(self) -> str:
        """The greatest cause of the kind that most samples have; ``"none"``: nothing differs."""
        kind = next(iter(self.by_kind), None)
        first = next((f.code for f in self.findings if f.cause.kind == kind), None)
        return first or (OTHER_DATASET if self.findings else "none")

    def sentences(self) -> list[str]:
        """The verdict in words: what, where, how sure, and what to do."""
        if not self.num_compared:
            return [
                "NOTHING TO COMPARE: no sample's line says both what was expected and what came. "
                "Name another log, or a store, a journal or a dump directory."
            ]
        if not self.findings:
            return [
                self.by_ids or f"All {self.num_compared} compared samples agree; nothing to cure."
            ]
        lines = [_paragraph(f) for f in self.findings]
        return [*self._headlines(), *lines]

    def _headlines(self) -> list[str]:
        lines = [self.by_ids] if self.by_ids else []
        if OTHER_DATASET in self.codes:
            lines.append(
                "THIS LOG IS NOT OF THIS DATASET: the dataset is left out of what follows."
            )
        counts = self.by_kind
        if self.by_ids:
            counts.pop("dataset", None)
        if not counts:
            return lines
        kind, *others = counts
        differ = f"{self.num_mismatched} of {self.num_compared} compared samples differ"
        if self.by_ids:
            differ = f"{sum(counts.values())} samples that are not stored differ in length"
        if kind == "unknown":
            word = "UNKNOWN" if self.is_decidable else "UNDECIDED, too little evidence"
        else:
            word = kind.upper()
            known = [k for k in counts if k != "unknown"]
            if self.is_mix and len(known) > 1:
                word = "A MIX of " + " and ".join(known)
            if kind == "synchronisation" and "tokenizer" not in counts:
                word += ", not the tokenizer"
        rest = [f"{counts[k]} of them {_EXPLAINED.get(k, f'explained by the {k}')}" for k in others]
        return [*lines, f"{', '.join([f'{word}: {differ}', *rest])}."]


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

    def with_ids(
        self, headline: str, findings: Sequence[Finding], lengths: np.ndarray
    ) -> "Diagnosis":
        """The same with stored ids compared; ``lengths`` int64 [rows] is what the dataset has."""
        observed = self.observed
        here = (observed.indices < len(lengths)) & (observed.got == observed.expected)
        expected = observed.expected.copy()
        expected[here] = lengths[observed.indices[here]]
        wrong = [f.samples for f in (*findings, *self.verdict.findings)]
        verdict = replace(
            self.verdict,
            findings=(*findings, *self.verdict.findings),
            num_mismatched=len(np.unique(np.concatenate(wrong))) if wrong else 0,
            by_ids=headline,
        )
        return replace(self, observed=replace(observed, expected=expected), verdict=verdict)


def diagnose_counts(observed: Observations, rows: DatasetRows | None = None) -> Diagnosis:
    """Explain lengths that differ (and ids, where both sides have them)."""
    findings: list[Finding] = []
    misfit = other_dataset(observed, rows) if rows is not None else None
    if misfit is not None:
        findings, rows = [misfit], None
    if rows is not None:
        digests = rows.digests() if observed.got_ids is not None else None
        observed = observed.with_rows(rows.lengths, digests)
    observed = _counted_from_first(observed)
    filing = file_by(observed, align(observed))
    explained = shift_findings(observed, filing)
    open_ = observed.mismatched & ~filing.misfiled & ~filing.foreign
    order = _whole_order(observed, filing, open_)
    if order:
        explained, open_ = [order], np.zeros_like(open_)
    explained += _by_counts(observed, rows, open_)
    known = np.concatenate([f.samples for f in explained]) if explained else np.zeros(0, np.int64)
    left = np.setdiff1d(observed.indices[observed.mismatched], known)
    if len(left):
        explained.append(Finding(UNKNOWN_CAUSE, left, _left_words(observed, left, filing)))
    verdict = verdict_of([*findings, *explained], observed)
    is_decidable = filing.by_ids or filing.alignment.is_decidable
    return Diagnosis(observed, filing, replace(verdict, is_decidable=is_decidable))


def other_dataset(observed: Observations, rows: DatasetRows) -> Finding | None:
    """Whether the lengths that the log expects are other rows' than this dataset's."""
    known = np.flatnonzero(observed.expected > 0)
    indices = observed.indices[known]
    has = np.where(
        indices < len(rows), np.append(rows.lengths, UNKNOWN)[indices.clip(max=len(rows))], 0
    )
    misfit = has != observed.expected[known]
    if misfit.sum() < _LEAST_MISFITS or misfit.sum() <= _MISFIT_SHARE * len(known):
        return None
    at = int(known[misfit][0])
    index, wanted, row = int(observed.indices[at]), observed.expected[at], has[misfit][0]
    is_there = f"row {index} has {row} tokens" if row > 0 else f"the dataset has no row {index}"
    text = f"of sample {index} the log expects {wanted} tokens, but {is_there}"
    count = f"{misfit.sum()} of {len(known)} expected lengths are not those of the dataset's rows"
    return Finding(OTHER_DATASET, indices[misfit], f"{count}: {text}")


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
    if repeats(observed.expected):
        return None  # one period of lengths is like another
    finding = stride_finding(observed, filing.alignment)
    if finding is None and not filing.misfiled.any():
        finding = permutation_finding(observed)
    return finding


def _by_counts(
    observed: Observations, rows: DatasetRows | None, open_: np.ndarray
) -> list[Finding]:
    """Causes by lengths, the one that explains most first; what it explains is closed then."""
    found = []
    open_ = open_ & (observed.expected != observed.got)
    if rows is not None and len(rows):
        cached = counts.cached_prefixes(rows, observed.indices, observed.got, open_)
        if cached is not None:
            found.append(Finding("prefix_cache", observed.indices[cached.where], cached.evidence))
            open_ = open_ & ~cached.where
    while open_.any():
        code, explained = _best_by_counts(observed, open_)
        if explained is None:
            break
        found.append(Finding(code, observed.indices[explained.where], explained.evidence))
        open_ = open_ & ~explained.where
    return found


def _best_by_counts(
    observed: Observations, open_: np.ndarray
) -> tuple[str, counts.Explained | None]:
    """The rule that explains most, unless a small shift would explain it as well."""
    best: tuple[str, counts.Explained | None] = ("", None)
    for code, detector in counts.DETECTORS:
        found = detector(observed.expected, observed.got, open_)
        if found is None or (best[1] is not None and found.where.sum() <= best[1].where.sum()):
            continue
        if not counts.is_a_neighbours(observed.expected, observed.got, found.where):
            best = (code, found)
    return best


def _left_words(observed: Observations, samples: np.ndarray, filing: Filing) -> str:
    first = int(observed.indices[0])
    parts = [
        f"sample {index} got {observed.got[index - first]}, "
        f"expected {observed.expected[index - first]}"
        for index in samples[:_SHOWN].tolist()
    ]
    text = "for example " + "; ".join(parts)
    if filing.by_ids or filing.alignment.is_decidable:
        return text
    return f"too few lengths, or too similar ones, to distinguish a shift from chance; {text}"


def _order(finding: Finding) -> tuple[bool, bool, int]:
    code = finding.code
    return code == OTHER_DATASET, code == UNKNOWN_CAUSE, -len(finding.samples)


def verdict_of(findings: Sequence[Finding], observed: Observations) -> Verdict:
    """Order findings by size; findings of one code become one. Pure."""
    ordered = sorted(merged(findings), key=_order)
    parts = [f.samples for f in ordered if f.code != OTHER_DATASET]
    wrong = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    compared = int((observed.compared | (observed.got > 0)).sum())
    return Verdict(tuple(ordered), compared, len(np.unique(wrong)))
