"""Which captured tensor is the state that enters a layer: the layer itself says so.

A pre-norm layer's mixer reads the layer's input norm of the residual stream that enters it. So
a tensor is that stream if its norm, recomputed, is what the mixer read. Pure functions of
values; nothing here touches a model.

Measured with SGLang 0.5.23 on tiny and trained models: right states are at 0.0016 to 0.004 of
what was read (bf16 rounds by up to 0.0039), right states through the wrong kind of norm at
0.05 and more, wrong states at 0.2 and more.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from hs_dump.norms import Norm

# bf16: five times the largest error of a right token, a tenth of the smallest of a wrong state.
TOLERANCE = 0.02
# A mixer whose input a fused norm has quantised: e4m3 has 3 bits of mantissa, which rounds by
# 0.026 (root mean square) and 0.0625 at most; int8 per token is finer.
TOLERANCE_QUANTISED = 0.07
# In order of preference. A layer's own norm is no seam: what enters any norm, and what its reader
# reads, agree always, also after the attention.
SEAMS = ("stage", "sum", "hidden", "aux")


class Read(NamedTuple):
    """What a module inside the layer was given."""

    reader: str  # the module's name below the layer
    rows: np.ndarray  # float32 [S, H]
    quantised: bool = False

    @property
    def tolerance(self) -> float:
        return TOLERANCE_QUANTISED if self.quantised else TOLERANCE


class Choice(NamedTuple):
    """How one boundary is captured and witnessed from now on."""

    seam: str
    reader: str
    norm: Norm
    error: float  # the largest over the witnessed tokens
    tolerance: float
    errors: dict[str, float]  # of every seam that was there


class Refusal(NamedTuple):
    """Why one boundary can't be witnessed."""

    reason: str
    errors: dict[str, float]  # the best that each seam came to


def token_errors(states: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """``|states - wanted| / |wanted|`` for each token, of float32 ``[S, H]``; inf where not finite."""
    difference = states - wanted
    size = np.sqrt(np.einsum("sh,sh->s", wanted, wanted))
    error = np.sqrt(np.einsum("sh,sh->s", difference, difference)) / np.maximum(size, 1e-30)
    return np.where(np.isfinite(error), error, np.inf)


def choose(
    candidates: Mapping[str, np.ndarray],
    reads: Iterable[Read],
    norms: Iterable[Norm],
    seams: Iterable[str] = SEAMS,
) -> Choice | Refusal:
    """Find the seam whose state, through one of the layer's norms, is what one of its modules read.

    Args:
        candidates: float32 ``[S, H]`` of each seam that could be captured.
        reads: in the order in which the modules ran.
        seams: those that may be taken, in order of preference.
    """
    seams, norms, reads = list(seams), list(norms), list(reads)
    missing = _what_is_missing(candidates, norms, reads)
    if missing:
        return Refusal(missing, {})
    best: tuple[float, Read, Norm, dict[str, float]] | None = None
    for read in reads:
        for norm in norms:
            errors = {
                seam: float(token_errors(norm.of(candidates[seam]), read.rows).max())
                for seam in seams
                if seam in candidates
            }
            least = min(errors.values(), default=np.inf)
            if best is None or least < best[0]:
                best = (least, read, norm, errors)
    assert best is not None
    _, read, norm, errors = best
    for seam in seams:
        if errors.get(seam, np.inf) <= read.tolerance:
            return Choice(seam, read.reader, norm, errors[seam], read.tolerance, errors)
    return Refusal(_why(candidates, reads, read, norm, errors), errors)


def _what_is_missing(
    candidates: Mapping[str, np.ndarray], norms: list[Norm], reads: list[Read]
) -> str:
    if not candidates:
        return (
            "no state of the model's width was seen at the layer's entrance (several residual "
            "streams, or states of another width)"
        )
    if not norms:
        return "the layer has no norm of the model's width: nothing says what it was given"
    if not reads:
        return "no module of the layer was seen to read a tensor of the model's width"
    return ""


def _why(
    candidates: Mapping[str, np.ndarray],
    reads: list[Read],
    read: Read,
    norm: Norm,
    errors: dict[str, float],
) -> str:
    for seam, states in candidates.items():
        for other in reads:
            if token_errors(states, other.rows).max() <= other.tolerance:
                return (
                    f"the layer has no input norm: its {other.reader} reads the {seam} state as it "
                    "is, which would hold for a wrong state too"
                )
    told = ", ".join(f"{seam} {error:.3g}" for seam, error in errors.items())
    return (
        f"no captured state is what the layer read: through {norm}, against what {read.reader} "
        f"read, the errors are {told}; tolerance {read.tolerance:g}"
    )
