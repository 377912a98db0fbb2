"""A diagnosis as tables (pandas): the numbers of its figures, and the list of causes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hslib.diagnosis.filing.alignment import UNALIGNED
from hslib.diagnosis.filing.finding import ranges
from hslib.diagnosis.filing.verdict import Diagnosis
from hslib.diagnosis.tokens.recipes import Compared

if TYPE_CHECKING:
    import pandas


def sample_table(diagnosis: Diagnosis) -> "pandas.DataFrame":
    """A line per sample whose ``got`` is known.

    Columns ``sample, expected, got, difference`` (tokens), ``lag`` (samples), ``holds`` (whose
    states, where that is certain), ``cause`` (``agrees`` where nothing is wrong). Missing numbers
    are <NA>.
    """
    import pandas

    observed, filing = diagnosis.observed, diagnosis.filing
    numbers = pandas.DataFrame(
        {
            "sample": observed.indices,
            "expected": _known(observed.expected, observed.expected > 0),
            "got": _known(observed.got, observed.got > 0),
            "difference": _known(observed.got - observed.expected, observed.compared),
            "lag": _known(filing.alignment.lags, _has_lag(diagnosis)),
            "holds": _known(filing.holds, _has_lag(diagnosis) & (filing.holds != UNALIGNED)),
        }
    )
    cause = np.full(len(observed), "agrees", object)
    for finding in reversed(diagnosis.verdict.findings):
        cause[np.isin(observed.indices, finding.samples)] = finding.code
    numbers["cause"] = cause
    return numbers[observed.got > 0].reset_index(drop=True)


def _has_lag(diagnosis: Diagnosis) -> np.ndarray:
    alignment = diagnosis.filing.alignment
    return np.asarray((alignment.lags != UNALIGNED) & alignment.is_found)


def _known(values: np.ndarray, where: np.ndarray) -> "pandas.arrays.IntegerArray":
    import pandas

    return pandas.arrays.IntegerArray(values.astype(np.int64), ~where)


def cause_table(diagnosis: Diagnosis, shown: int = 3) -> "pandas.DataFrame":
    """A line per cause: how many samples, which, and the first ``shown`` as examples."""
    import pandas

    numbers = sample_table(diagnosis).set_index("sample")
    lines = []
    for finding in diagnosis.verdict.findings:
        examples = list(finding.examples[:shown])
        here = finding.samples[np.isin(finding.samples, numbers.index)]
        known = numbers.loc[here, "holds"].notna().to_numpy()
        telling = np.concatenate([here[known], here[~known]])
        for index in [] if examples else telling[:shown].tolist():
            row = numbers.loc[index]
            holds = "" if pandas.isna(row["holds"]) else f", holds {row['holds']}'s"
            wanted = "?" if pandas.isna(row["expected"]) else row["expected"]
            examples.append(f"{index}: got {row['got']}, expected {wanted}{holds}")
        lines.append(
            {
                "cause": finding.code,
                "kind": finding.cause.kind,
                "samples": len(finding.samples),
                "which": ranges(finding.samples, shown=4),
                "examples": "; ".join(examples),
            }
        )
    columns = ["cause", "kind", "samples", "which", "examples"]
    return pandas.DataFrame(lines, columns=columns).set_index("cause")


def pair_table(compared: Sequence[Compared]) -> "pandas.DataFrame":
    """A line per pair of tokenisations: rows, rows with equal ids, and the causes of the rest."""
    import pandas

    lines = [
        {
            "expected": pair.expected.name,
            "got": pair.got.name,
            "rows": len(pair.comparisons),
            "left out": len(pair.left_out),
            "equal ids": len(pair.comparisons) - len(pair.differing),
            "equal count, other ids": pair.equal_counts,
            "causes": ", ".join(f"{c} {len(r)}" for c, r in pair.by_cause.items()) or "-",
        }
        for pair in compared
    ]
    columns = ["expected", "got", "rows", "left out", "equal ids", "equal count, other ids"]
    return pandas.DataFrame(lines, columns=[*columns, "causes"]).set_index("expected")
