"""float8_e4m3fn with a scale per token and state, so that no state pays for another's norm.

::

    hidden_states.fp8      F8_E4M3 [T, K, H]     value / scale
    hidden_states.scales   F32 [T, K]            largest magnitude / 448
    hidden_states.bf16     BF16 [T, L - K, H]    the final state, where it is kept as it is

A value comes back as bfloat16(fp8 x scale), the product in float32.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hslib.store.encoding.codec import Encoded, Shape, Tensor

if TYPE_CHECKING:
    import torch

MAX = 448.0  # largest finite float8_e4m3fn (Micikevicius et al. 2022, table 1)
_VALUES_AT_ONCE = 1 << 15  # torch divides more among threads, which then wait for one another


@dataclass(frozen=True, eq=False)
class Fp8:
    """The codec (:class:`hslib.store.encoding.codec.Codec`)."""

    keeps_last: bool  # in bfloat16
    is_lossy: bool = True

    def encode(self, bits: np.ndarray) -> Encoded:
        split = bits.shape[1] - self.keeps_last
        codes, scales = quantise(bits[:, :split])
        decoded = bits.copy()
        decoded[:, :split] = dequantise(codes, scales)
        tensors = {
            "hidden_states.fp8": Tensor("F8_E4M3", codes.shape, codes),
            "hidden_states.scales": Tensor("F32", scales.shape, scales),
        }
        if self.keeps_last:
            last = np.ascontiguousarray(bits[:, split:])
            tensors["hidden_states.bf16"] = Tensor("BF16", last.shape, last)
        return Encoded(tensors, decoded, relative_errors(bits, decoded))

    def tensors(
        self, shape: Shape, _found: Mapping[str, np.ndarray]
    ) -> dict[str, tuple[str, Shape]]:
        tokens, states, hidden = shape
        split = states - self.keeps_last
        named = {
            "hidden_states.fp8": ("F8_E4M3", (tokens, split, hidden)),
            "hidden_states.scales": ("F32", (tokens, split)),
        }
        return named | (
            {"hidden_states.bf16": ("BF16", (tokens, 1, hidden))} if self.keeps_last else {}
        )

    def kept(self, found: Mapping[str, np.ndarray], shape: Shape, _path: str) -> "ScaledStates":
        codes, scales = found["hidden_states.fp8"], found["hidden_states.scales"]
        return ScaledStates(codes, scales, found.get("hidden_states.bf16"), shape)

    def share(self, num_states: int, hidden_size: int) -> float:
        split = num_states - self.keeps_last
        size = split * (hidden_size + 4) + (num_states - split) * hidden_size * 2
        return size / (num_states * hidden_size * 2)


@dataclass(frozen=True, eq=False)
class ScaledStates:
    """States with scales (:class:`hslib.store.encoding.codec.KeptStates`)."""

    codes: np.ndarray
    scales: np.ndarray
    last: np.ndarray | None
    shape: Shape

    def whole(self) -> np.ndarray:
        bits = np.empty(self.shape, np.uint16)
        split = self.codes.shape[1]
        bits[:, :split] = dequantise(self.codes, self.scales)
        if self.last is not None:
            bits[:, split:] = self.last
        return bits

    def one(self, number: int) -> np.ndarray:
        if self.last is not None and number == self.codes.shape[1]:
            return self.last[:, 0]
        part = slice(number, number + 1)
        return dequantise(self.codes[:, part], self.scales[:, part])[:, 0]


def quantise(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """uint16 [T, K, H], the bits of finite bfloat16 -> uint8 [T, K, H], float32 [T, K]."""
    import torch

    codes, scales = np.empty(bits.shape, np.uint8), np.empty(bits.shape[:2], np.float32)
    for part in _parts(bits.shape):
        values = _floats(bits[part])
        scale = values.abs().amax(-1, keepdim=True) / MAX
        scale[scale == 0] = 1.0
        small = (values / scale).clamp_(-MAX, MAX).to(torch.float8_e4m3fn)
        codes[part] = small.view(torch.uint8).numpy()
        scales[part] = scale.squeeze(-1).numpy()
    return codes, scales


def dequantise(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """uint16 [T, K, H], the bits of bfloat16, of uint8 [T, K, H] and float32 [T, K]."""
    import torch

    table = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    bits = np.empty(codes.shape, np.uint16)
    for part in _parts(codes.shape):
        values = np.take(table, codes[part])  # faster than torch's own conversion
        with np.errstate(over="ignore", invalid="ignore"):  # of a damaged file's scales
            values *= scales[part][..., None]
        bits[part] = torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()
    return bits


def relative_errors(bits: np.ndarray, decoded: np.ndarray) -> tuple[float, ...]:
    """Per state of uint16 [T, L, H], the largest relative error (L2) of a token."""
    import torch

    worst = torch.zeros(bits.shape[1])
    for part in _parts(bits.shape):
        values = _floats(bits[part])
        largest = values.abs().amax(-1, keepdim=True)
        largest[largest == 0] = 1.0
        # of values near 1, whose squares neither overflow nor vanish
        lost = torch.linalg.vector_norm((_floats(decoded[part]) - values) / largest, dim=-1)
        norm = torch.linalg.vector_norm(values / largest, dim=-1)
        worst = torch.maximum(worst, torch.where(norm > 0, lost / norm, lost).amax(0))
    return tuple(worst.tolist())


def _parts(shape: Shape) -> Iterator[slice]:
    tokens, states, hidden = shape
    step = max(1, _VALUES_AT_ONCE // max(1, states * hidden))
    return (slice(start, start + step) for start in range(0, tokens, step))


def _floats(bits: np.ndarray) -> "torch.Tensor":
    """float32 of bf16 bits."""
    import torch

    return torch.from_numpy((bits.astype(np.uint32) << 16).view(np.float32))
