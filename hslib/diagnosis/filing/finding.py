"""A cause, the samples that it explains, and why it is believed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hslib.diagnosis.catalogue import CATALOGUE, Cause

_EXAMPLES = 3  # kept of findings that become one


@dataclass(frozen=True, eq=False)
class Finding:
    """``samples`` int64: dataset indices, ascending.

    ``chance``: upper bound of the probability that unrelated data look like this; None where it
    is not computed. ``examples``: of samples, where lengths are none.
    """

    code: str
    samples: np.ndarray
    evidence: str
    chance: float | None = None
    examples: tuple[str, ...] = ()

    @property
    def cause(self) -> Cause:
        return CATALOGUE[self.code]


def merged(findings: Sequence[Finding]) -> list[Finding]:
    """One finding per code, in the order in which the codes come first. Pure."""
    found: dict[str, Finding] = {}
    for finding in findings:
        known = found.get(finding.code)
        if known is not None:
            finding = replace(
                known,
                samples=np.union1d(known.samples, finding.samples),
                evidence=f"{known.evidence}; {finding.evidence}",
                examples=(*known.examples, *finding.examples)[:_EXAMPLES],
            )
        found[finding.code] = finding
    return list(found.values())


def ranges(samples: Sequence[int] | np.ndarray, shown: int = 6) -> str:
    """``"81-84, 86, ... (7 in all)"``. Pure."""
    values = np.unique(np.asarray(samples, np.int64))
    if not len(values):
        return "none"
    edges = np.flatnonzero(np.diff(values) > 1) + 1
    runs = np.split(values, edges)
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    if len(parts) <= shown:
        return ", ".join(parts)
    return ", ".join(parts[:shown]) + f", ... ({len(values)} in all)"
