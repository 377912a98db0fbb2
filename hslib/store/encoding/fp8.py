"""float8_e4m3fn with a scale per token and state, so that no state pays for another's norm.

::

    hidden_states.fp8      F8_E4M3 [T, K, H]     value / scale
    hidden_states.scales   F32 [T, K]            largest magnitude / 448
    hidden_states.bf16     BF16 [T, L - K, H]    the final state, where it is kept as it is

A value comes back as bfloat16(fp8 x scale), the product in float32.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hslib.store.encoding.codec import Encoded, Shape, Tensor

if TYPE_CHECKING:
    import torch

MAX = 448.0  # largest finite float8_e4m3fn (Micikevicius et al. 2022, table 1)
_LEAST_SCALE = 2.0**-126  # the least normal float32; also of zeros
_VALUES_AT_ONCE = 1 << 19  # smaller parts spend their time between operations


@dataclass(frozen=True, eq=False)
class Fp8:
    """The codec (:class:`hslib.store.encoding.codec.Codec`)."""

    keeps_last: bool  # in bfloat16
    is_lossy: bool = True

    def encode(self, bits: np.ndarray) -> Encoded:
        split = bits.shape[1] - self.keeps_last
        made = quantise(bits[:, :split])
        tensors = {
            "hidden_states.fp8": Tensor("F8_E4M3", made.codes.shape, made.codes),
            "hidden_states.scales": Tensor("F32", made.scales.shape, made.scales),
        }
        if not self.keeps_last:
            return Encoded(tensors, made.decoded, made.errors)
        last = np.ascontiguousarray(bits[:, split:])
        tensors["hidden_states.bf16"] = Tensor("BF16", last.shape, last)
        decoded = np.concatenate((made.decoded, last), axis=1)
        return Encoded(tensors, decoded, (*made.errors, 0.0))

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
class Quantised:
    """``codes`` uint8 [T, K, H], ``scales`` float32 [T, K], and what they give back: ``decoded``
    uint16 [T, K, H]. ``errors``: per state the largest relative error (L2) of a token."""

    codes: np.ndarray
    scales: np.ndarray
    decoded: np.ndarray
    errors: tuple[float, ...]


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


def quantise(bits: np.ndarray) -> Quantised:
    """Of uint16 [T, K, H], the bits of finite bfloat16 values."""
    import torch

    tokens, states, _ = bits.shape
    codes, decoded = np.empty(bits.shape, np.uint8), np.empty(bits.shape, np.int16)
    scales, worst = np.empty((tokens, states), np.float32), torch.zeros(states)
    small_codes = torch.from_numpy(codes).view(torch.float8_e4m3fn)
    read = torch.from_numpy(decoded).view(torch.bfloat16)
    for part in _alone(bits.shape):
        values = _floats(bits[part])
        scale = values.abs().amax(-1, keepdim=True).div_(MAX).clamp_(min=_LEAST_SCALE)
        small = values.div_(scale)  # up to 448: squares neither overflow nor vanish
        small_codes[part] = small.to(torch.float8_e4m3fn)
        scales[part] = scale.squeeze(-1).numpy()
        read[part] = torch.from_numpy(np.take(_table(), codes[part])).mul_(scale)
        lost = torch.linalg.vector_norm(read[part].float().div_(scale).sub_(small), dim=-1)
        norm = torch.linalg.vector_norm(small, dim=-1)
        worst = torch.maximum(worst, torch.where(norm > 0, lost / norm, lost).amax(0))
    return Quantised(codes, scales, decoded.view(np.uint16), tuple(worst.tolist()))


@functools.cache
def _table() -> np.ndarray:
    """float32 [256]: the value of each code; looking it up is faster than torch's conversion."""
    import torch

    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()


def dequantise(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """uint16 [T, K, H], the bits of bfloat16, of uint8 [T, K, H] and float32 [T, K]."""
    import torch

    bits = np.empty(codes.shape, np.int16)
    read = torch.from_numpy(bits).view(torch.bfloat16)
    for part in _alone(codes.shape):
        values = np.take(_table(), codes[part])
        with np.errstate(over="ignore", invalid="ignore"):  # of a damaged file's scales
            values *= scales[part][..., None]
        read[part] = torch.from_numpy(values)
    return bits.view(np.uint16)


def _alone(shape: Shape) -> Iterator[slice]:
    """The tokens in parts; meanwhile torch uses no other thread: each sample has one of its own."""
    import torch

    tokens, states, hidden = shape
    step = max(1, _VALUES_AT_ONCE // max(1, states * hidden))
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # of this thread
    try:
        for start in range(0, tokens, step):
            yield slice(start, start + step)
    finally:
        torch.set_num_threads(before)


def _floats(bits: np.ndarray) -> "torch.Tensor":
    """float32 of bf16 bits."""
    import torch

    return torch.from_numpy((bits.astype(np.uint32) << 16).view(np.float32))
