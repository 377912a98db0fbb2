"""Which captured tensor is the state that enters a layer: what the layer reads decides.

In a pre-norm layer the mixer reads the input norm of the residual stream that enters the layer. So
a tensor is that stream if its norm, recomputed, equals what the mixer read. In the same way the
final norm and the head confirm the last two states. Pure functions of arrays.

Relative errors measured with SGLang 0.5.23 on tiny and trained models: 0.0016 to 0.004 for right
states (bf16 rounds by up to 0.0039), 0.05 and more for right states through the wrong kind of norm,
0.2 and more for wrong states.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hs_dump.head import Head
from hs_dump.norms import Norm

FINAL = "final"
# bf16: five times the largest error of a right state, a tenth of the smallest of a wrong one.
TOLERANCE = 0.02
# A fused norm may quantise the mixer's input. e4m3 has 3 bits of mantissa: it rounds by 0.026
# (root mean square) and at most 0.0625. int8 per token rounds less.
TOLERANCE_QUANTISED = 0.07
# In order of preference. The input of a layer's norm is no seam: it always agrees with what reads
# the norm's output, also for the norm after the attention.
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


class FinalChoice(NamedTuple):
    """How the final state is captured, and what witnesses it."""

    norm_name: str  # the final norm's, "" when the head's input is taken
    norm: Norm | None  # recomputed from the stream that enters it
    scale: float  # the head reads the state times this
    head: Head | None
    errors: dict[str, float]  # "norm", "head"
    reason: str = ""  # why it is not witnessed; "" when it is

    @property
    def error(self) -> float:
        return max(self.errors.values(), default=np.inf)


@dataclass
class Proof:
    """What the first pass decided. ``final`` None: neither stored nor needed as a witness."""

    stores_final: bool
    final: FinalChoice | None = None
    layers: dict[int, Choice | Refusal] = field(default_factory=dict)  # by boundary

    def unwitnessed(self) -> dict[str, str]:
        """Why a state has no witness, by ``"boundary 3"`` or ``"final"``."""
        layers = {b: c.reason for b, c in self.layers.items() if isinstance(c, Refusal)}
        found = {label(b): reason for b, reason in layers.items()}
        if self.stores_final and self.final is not None and self.final.reason:
            found[FINAL] = self.final.reason
        return found

    def describe(self) -> list[dict[str, Any]]:
        """For plugin.json: per stored state its seam, its witness and the errors."""
        told = [_told(label(boundary), choice) for boundary, choice in self.layers.items()]
        if self.stores_final and self.final is not None:
            told.append(_told_final(self.final))
        return told


def label(place: Any) -> str:
    """``"boundary 3"`` or ``"final"``."""
    return FINAL if place == FINAL else f"boundary {place}"


def token_errors(states: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """``|states - wanted| / |wanted|`` for each token of float32 ``[S, H]``; inf if not finite."""
    difference = states - wanted
    size = np.sqrt(np.einsum("sh,sh->s", wanted, wanted))
    error = np.sqrt(np.einsum("sh,sh->s", difference, difference)) / np.maximum(size, 1e-30)
    return np.where(np.isfinite(error), error, np.inf)


def choose(
    candidates: Mapping[str, np.ndarray],
    reads: Sequence[Read],
    norms: Sequence[Norm],
    seams: Iterable[str] = SEAMS,
) -> Choice | Refusal:
    """Find the seam whose state, through a norm of the layer, is what a module of it read.

    Args:
        candidates: float32 ``[S, H]`` of each seam that could be captured.
        reads: in the order in which the modules ran.
        seams: those that may be taken, in order of preference.
    """
    missing = _what_is_missing(candidates, norms, reads)
    if missing:
        return Refusal(missing, {})
    tried = []
    for read in reads:
        for norm in norms:
            errors = {
                seam: float(token_errors(norm.of(candidates[seam]), read.rows).max())
                for seam in seams
                if seam in candidates
            }
            tried.append((min(errors.values(), default=np.inf), read, norm, errors))
    least, read, norm, errors = min(tried, key=lambda one: one[0])
    if least > read.tolerance:
        return Refusal(_why(candidates, reads, read, norm, errors), errors)
    seam = next(seam for seam in errors if errors[seam] <= read.tolerance)
    return Choice(seam, read.reader, norm, errors[seam], read.tolerance, errors)


def _what_is_missing(
    candidates: Mapping[str, np.ndarray], norms: Sequence[Norm], reads: Sequence[Read]
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
    reads: Sequence[Read],
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


def choose_final(
    outputs: Mapping[str, np.ndarray],
    entrances: Mapping[str, np.ndarray],
    read: np.ndarray | None,
    norms: Mapping[str, Sequence[Norm]],
    head: Head | str,
    logits: tuple[np.ndarray, Sequence[int]] | None,
) -> FinalChoice:
    """Find the final norm, and compare the final state with it and with the server's logits.

    Args:
        outputs, entrances: float32 ``[S, H]``, output and input of each norm after the layers.
        read: float32 ``[S, H]``, the input of the head's processor.
        norms: the formulas that each of these norms may compute.
        head: the head, or why it can't be a witness.
        logits: the server's logits of the head's columns, and the rows that they belong to.
    """
    if read is None:
        why = "the head was not seen to read all rows (a sharded sequence?)"
        return FinalChoice("", None, 1.0, None, {}, why)
    name, scale = _final_norm(outputs, read)
    states = outputs[name] if name else read
    errors: dict[str, float] = {}
    norm = None
    if name in entrances:
        tried = [float(token_errors(n.of(entrances[name]), states).max()) for n in norms[name]]
        errors["norm"] = min(tried)
        norm = norms[name][tried.index(min(tried))]
    why = head if isinstance(head, str) else "no logits" if logits is None else ""
    witness = None
    if isinstance(head, Head) and logits is not None:
        said, rows = logits
        errors["head"] = float(token_errors(head.logits(states[list(rows)] * scale), said).max())
        witness = head
    wrong = {n: e for n, e in errors.items() if not e <= TOLERANCE}
    reason = ""
    if wrong or not errors:
        told = ", ".join(f"{n} {e:.3g}" for n, e in wrong.items()) or why
        reason = f"what was captured is not what the final norm and the head say: {told}"
    return FinalChoice(name, norm, scale, witness, errors, reason)


def _final_norm(outputs: Mapping[str, np.ndarray], read: np.ndarray) -> tuple[str, float]:
    """The norm whose output the head reads, and the scale between; ``("", 1.0)`` if none."""
    for name, output in outputs.items():
        scale = float((output * read).sum()) / max(float((output * output).sum()), 1e-30)
        if token_errors(output * scale, read).max() <= TOLERANCE / 2:
            return name, 1.0 if abs(scale - 1) < TOLERANCE / 2 else scale
    return "", 1.0


def choose_last(final: FinalChoice) -> Choice | Refusal:
    """Boundary n, the stream that enters the final norm; the final state is its witness."""
    if final.norm is None:
        return Refusal("the final norm was not found: nothing says what it was given", {})
    errors = {"sum": final.errors["norm"]}
    if final.reason:
        return Refusal(final.reason, errors)
    return Choice("sum", "the head", final.norm, errors["sum"], TOLERANCE, errors)


def _told(state: str, choice: Choice | Refusal) -> dict[str, Any]:
    errors = {seam: finite(error) for seam, error in choice.errors.items()}
    if isinstance(choice, Refusal):
        refused = {"seam": "", "witness": "", "reason": choice.reason}
        return {"state": state, **refused, "errors": errors}
    return {
        "state": state,
        "seam": choice.seam,
        "witness": f"{choice.norm} as {choice.reader} read it",
        "error": finite(choice.error),
        "tolerance": choice.tolerance,
        "errors": errors,
    }


def _told_final(final: FinalChoice) -> dict[str, Any]:
    told = [f"{final.norm} of the stream that enters it"] if final.norm else []
    told += ["the server's logits"] if final.head else []
    return {
        "state": FINAL,
        "seam": final.norm_name or "head",
        "witness": "" if final.reason else " and ".join(told),
        "reason": final.reason,
        "error": finite(final.error),
        "tolerance": TOLERANCE,
        "errors": {name: finite(error) for name, error in final.errors.items()},
    }


def finite(error: float) -> float:
    """An error for JSON, which has no infinity: at most 1e9."""
    return round(min(float(error), 1e9), 6)
