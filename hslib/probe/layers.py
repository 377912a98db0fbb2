"""Which boundary is each stored state really? Its distance to every boundary of a reference.

The distance is the relative error; a stored state *is* the boundary that it is near to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from hslib.errors import ProbeError
from hslib.probe.reference import FINAL, Reference, column_name
from hslib.store import StoredSample

if TYPE_CHECKING:
    import torch

# Between two bf16 implementations of one model a boundary differs by 0.3 to 2 %; neighbouring
# boundaries differ by far more, unrelated states by about 140 %.
SAME = 0.1  # largest relative error of one and the same state
_APART = 2.0  # the second nearest boundary is at least so many times farther away

Match = Literal["as claimed", "another layer", "none of them", "can't be told", "not covered"]


@dataclass(frozen=True)
class LayerFinding:
    """What one stored state turned out to be; errors are relative, medians over tokens."""

    claimed: str
    match: Match
    nearest: str
    error: float  # to the nearest
    runner_up: str
    runner_up_error: float
    odd_rows: tuple[int, ...] = ()  # samples whose state is another one than the others'

    def sentence(self) -> str:
        near = f"nearest is {self.nearest} ({self.error:.1%} off)"
        says = {
            "as claimed": f"{self.claimed}: as claimed ({self.error:.1%} off)",
            "another layer": f"stored as {self.claimed}, but it IS {self.nearest}",
            "none of them": f"stored as {self.claimed}, but it is NO reference state: {near}",
            "can't be told": f"{self.claimed}: as near to {self.nearest} as to {self.runner_up}",
            "not covered": f"{self.claimed}: beyond the layers that were loaded",
        }[self.match]
        return says + (f"; samples {list(self.odd_rows)} differ" if self.odd_rows else "")


@dataclass(frozen=True, eq=False)
class ProbeReport:
    """Every stored state against every boundary of the reference."""

    claims: tuple[str, ...]
    columns: tuple[str, ...]
    errors: np.ndarray  # float64 [claims, columns], medians over rows of medians over tokens
    findings: tuple[LayerFinding, ...]
    num_rows: int

    @property
    def is_as_claimed(self) -> bool:
        """Whether no state contradicts the manifest; uncovered states do not."""
        good = {"as claimed", "not covered"}
        return all(f.match in good and not f.odd_rows for f in self.findings)

    def sentence(self) -> str:
        """The result in words."""
        proven = sum(f.match == "as claimed" for f in self.findings)
        if self.is_as_claimed:
            text = f"{proven} of {len(self.findings)} stored layers are what the manifest says"
            left = [f.claimed for f in self.findings if f.match == "not covered"]
            return text + (f"; not covered: {', '.join(left)}." if left else ".")
        wrong = [f for f in self.findings if f.match != "as claimed" or f.odd_rows]
        return "The store contradicts its manifest: " + "; ".join(f.sentence() for f in wrong) + "."

    def require_as_claimed(self) -> None:
        """Raises :class:`ProbeError` when a stored layer is not what the manifest says."""
        if not self.is_as_claimed:
            raise ProbeError(
                self.sentence(),
                matches={f.claimed: f.match for f in self.findings},
                fix="do not train on it. Another layer: the server captured others, see "
                "plugin.json and the layers table. No reference state: set reference_path to the "
                "checkpoint that was served. Samples differ: they hold other samples' states, "
                "extract them again",
            )


def relative_errors(stored: "torch.Tensor", reference: "torch.Tensor") -> np.ndarray:
    """Median over tokens of ``|s - r| / |r|`` for each stored layer and reference state.

    The median, because a mixture of experts may route a single token to other experts.

    Args:
        stored: [T, S, H]. reference: [C, T, H].

    Returns:
        float64 [S, C].
    """
    wide = stored.float()
    rows = []
    for layer in range(wide.shape[1]):
        apart = (reference - wide[:, layer]).norm(dim=-1) / reference.norm(dim=-1)  # [C, T]
        rows.append(apart.nan_to_num(float("inf")).median(dim=-1).values.double().numpy())
    return np.stack(rows)


def compare(samples: Sequence[StoredSample], reference: Reference) -> ProbeReport:
    """Probe samples of one store against a reference, row by row."""
    by_row = [
        relative_errors(sample.hidden_states, reference.states(sample.input_ids))
        for sample in samples
    ]
    stores_final = samples[0].hidden_states.shape[1] > len(samples[0].boundaries)
    boundaries: tuple[int | str, ...] = (*samples[0].boundaries, *([FINAL] * stores_final))
    return judge(
        np.stack(by_row),
        [column_name(b, reference.num_layers) for b in boundaries],
        [column_name(c, reference.num_layers) for c in reference.columns],
        [sample.entry.index for sample in samples],
    )


def judge(
    errors: np.ndarray, claims: Sequence[str], columns: Sequence[str], indices: Sequence[int]
) -> ProbeReport:
    """Findings from relative errors [rows, claims, columns]. Pure."""
    pooled = np.median(errors, axis=0)
    findings = tuple(
        _finding(claim, columns, pooled[number], errors[:, number], indices)
        for number, claim in enumerate(claims)
    )
    return ProbeReport(tuple(claims), tuple(columns), pooled, findings, len(indices))


def _finding(
    claim: str, columns: Sequence[str], errors: np.ndarray, by_row: np.ndarray, rows: Sequence[int]
) -> LayerFinding:
    order = np.argsort(errors, kind="stable")
    best, second = int(order[0]), int(order[1])
    match: Match = "as claimed"
    if errors[best] > SAME:
        match = "none of them" if claim in columns else "not covered"
    elif columns[best] != claim:
        match = "another layer"
    elif errors[second] < _APART * errors[best]:
        match = "can't be told"
    odd: tuple[int, ...] = ()
    if errors[best] <= SAME:
        odd = tuple(row for row, own in zip(rows, by_row[:, best], strict=True) if own > SAME)
    return LayerFinding(
        claimed=claim,
        match=match,
        nearest=columns[best],
        error=float(errors[best]),
        runner_up=columns[second],
        runner_up_error=float(errors[second]),
        odd_rows=odd,
    )
