"""Whether two servers run one model: their weights' digests, and their states of a fixed request.

The digests (``hs_dump/checkpoint.py``) compare the files on disk, wherever they are. The states of
the canary request compare what is computed from them, so they also show an adapter, another
quantisation or another kernel. What one side has not recorded is not compared.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pydantic

CANARY_TOKENS = 24
_DIRECTIONS = 16
# How far apart two states of one model may be, as a share of their norm, median over tokens: so
# much, and so much more per layer before them, since rounding adds up.
# Measured on CPUs at boundaries 2, 30, 58 and final of 61 random layers: 0.004, 0.014, 0.018, 0.018
# in chunks of 16; 0.008, 0.016, 0.020, 0.021 on two ranks. At 2, 5, 7 and final of 10 trained
# layers: 0, and 0.005, 0.007, 0.008, 0.012 on two ranks. A batch of 8 changed less than either.
# Another model is further away: fp8 weights 0.026 at boundary 1 to 0.043 at final of the 10 layers,
# int4 0.065 to 0.093, a rank-8 update of one layer by 10 % of its weights' norm 0.02 to 0.17
# after it. A smaller update is lost in rounding: only the weights' digests show it.
_TOLERANCE, _TOLERANCE_PER_LAYER = 0.02, 0.02 / 60
_MOST_GROUPS = 4  # named in a message


class Canary(pydantic.BaseModel):
    """The canary's states in short: about 4 kB for three layers and the final state.

    ``norms``: float32 [T, S], L2 norm per token and state. ``projections``: float16 [T, S, 16],
    the states divided by their norms, projected on 16 fixed random directions. Both are base64 of
    little-endian bytes.
    """

    model_config = pydantic.ConfigDict(frozen=True)

    num_tokens: int
    num_states: int
    norms: str
    projections: str

    def vectors(self) -> tuple[np.ndarray, np.ndarray]:
        """Norms float32 [T, S], and projections of the whole states float32 [T, S, 16]."""
        shape = (self.num_tokens, self.num_states)
        norms = np.frombuffer(base64.b64decode(self.norms), "<f4").reshape(shape)
        projections = np.frombuffer(base64.b64decode(self.projections), "<f2")
        return norms, projections.reshape(*shape, -1).astype(np.float32) * norms[..., None]


def canary_ids(vocab_size: int) -> np.ndarray:
    """The fixed request's ids, int32 [24], spread over the vocabulary."""
    places = np.arange(1, CANARY_TOKENS + 1) * 0.6180339887498949 % 1.0
    return np.minimum((places * vocab_size).astype(np.int32), vocab_size - 1)


def take_canary(states: np.ndarray) -> Canary:
    """Shorten the canary's states to norms and projections, which suffice to compare them.

    Args:
        states: uint16 [T, S, H], the bits of bfloat16.
    """
    values = (states.astype(np.uint32) << 16).view(np.float32)
    norms = np.linalg.norm(values, axis=-1)
    # NumPy's legacy generator: its numbers are frozen
    random = np.random.RandomState(0)
    directions = random.standard_normal((values.shape[-1], _DIRECTIONS)) / np.sqrt(_DIRECTIONS)
    unit = values / np.maximum(norms, np.finfo(np.float32).tiny)[..., None]
    return Canary(
        num_tokens=values.shape[0],
        num_states=values.shape[1],
        norms=_base64(norms, "<f4"),
        projections=_base64(unit @ directions.astype(np.float32), "<f2"),
    )


def distances(one: Canary, other: Canary) -> list[float]:
    """How far apart each state is: median over tokens of ``|x - y| / max(|x|, |y|)``.

    Empty when the two can't be compared: other layers, or a canary of another kind.
    """
    (norms, x), (other_norms, y) = one.vectors(), other.vectors()
    if x.shape != y.shape:
        return []
    largest = np.maximum(np.maximum(norms, other_norms), np.finfo(np.float32).tiny)
    found = np.median(np.linalg.norm(x - y, axis=-1) / largest, axis=0)
    return [float(distance) for distance in found]


def tolerance(boundary: int) -> float:
    """How far apart two states of one model may be at a boundary (final: num_layers)."""
    return _TOLERANCE + _TOLERANCE_PER_LAYER * boundary


def model_differences(
    weights: tuple[Mapping[str, str], Mapping[str, str]],
    canaries: tuple[Canary | None, Canary | None],
    boundaries: Sequence[int],
    num_layers: int,
) -> dict[str, tuple[Any, Any]]:
    """``{what differs, in words: (one's, other's)}``; empty for one and the same model. Pure."""
    one, other = weights
    if one and other:
        groups = sorted(one.keys() | other.keys(), key=_by_number)
        differing = [group for group in groups if one.get(group) != other.get(group)]
        if differing:
            named = ", ".join(differing[:_MOST_GROUPS])
            more = ", ..." if len(differing) > _MOST_GROUPS else ""
            what = f"weights of {named}{more} ({len(differing)} of {len(groups)} groups)"
            return {what: (one.get(differing[0]), other.get(differing[0]))}
    if None in canaries:
        return {}
    found = distances(*canaries)  # type: ignore[arg-type]
    allowed = [tolerance(boundary) for boundary in (*boundaries, num_layers)]
    # the first one is nearest to the layer that differs
    far = [number for number, distance in enumerate(found) if not distance <= allowed[number]]
    if not far:
        return {}
    first = far[0]
    label = f"boundary {boundaries[first]}" if first < len(boundaries) else "final"
    files = "the weights' files are the same, so it is an adapter, a quantisation or a kernel"
    why = files if one and other else "the weights were not recorded"
    return {
        f"the canary's states ({why}) at {label}": (
            f"off by {found[first]:.3f}",
            f"tolerance {allowed[first]:.3f}",
        )
    }


def _by_number(group: str) -> tuple[Any, ...]:
    stem, _, number = group.rpartition(".")
    return (stem, int(number), "") if number.isdigit() else (group, -1, "")


def _base64(values: np.ndarray, dtype: str) -> str:
    return base64.b64encode(values.astype(dtype).tobytes()).decode("ascii")
