"""Numbers of each state of a dump, accumulated over blocks of rows.

NumPy and not torch: NumPy stays on the calling thread, while torch would start a second set of
OpenMP threads, which spin beside those of the forward pass.
"""

from typing import Any

import numpy as np
import torch

_INFINITY_BITS = 0x7F80  # bits of |x| order like |x|; from here on it is inf or nan


class StateNumbers:
    """Accumulates over blocks; fast if a block and its float32 copy fit a core's cache."""

    def __init__(self, num_states: int) -> None:
        self._tokens = self._hidden = 0
        self._largest = np.zeros(num_states, dtype=np.uint16)
        self._norm_sum = np.zeros(num_states, dtype=np.float64)
        self._zeros = np.zeros(num_states, dtype=np.int64)

    def add(self, block: np.ndarray) -> None:
        """Rows uint16 ``[t, L, H]``, the bits of bfloat16."""
        magnitude = np.bitwise_and(block, 0x7FFF)
        np.maximum(self._largest, magnitude.max(axis=(0, 2)), out=self._largest)
        if not magnitude.min():
            self._zeros += (magnitude == 0).sum(axis=(0, 2))
        values = as_float32(magnitude)
        squares = np.einsum("tlh,tlh->tl", values, values)
        self._norm_sum += np.sqrt(squares).sum(axis=0, dtype=np.float64)
        self._tokens += len(block)
        self._hidden = block.shape[-1]

    def to_list(self) -> list[dict[str, Any]]:
        """Per state: ``finite``, ``absmax``, ``mean_l2`` over tokens, ``zero_share``.

        A number that is not finite is None: JSON has no NaN and no infinity.
        """
        absmax, mean_l2 = as_float32(self._largest), self._norm_sum / self._tokens
        return [
            {
                "finite": bool(bits < _INFINITY_BITS),
                "absmax": _number(absmax[i]),
                "mean_l2": _number(mean_l2[i]),
                "zero_share": float(self._zeros[i]) / (self._tokens * self._hidden),
            }
            for i, bits in enumerate(self._largest)
        ]


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    """bfloat16 as uint16, sharing memory: NumPy has no bfloat16."""
    return tensor.view(torch.int16).numpy().view(np.uint16)


def values_of(tensor: torch.Tensor) -> np.ndarray:
    """float32 of a CPU tensor of any dtype."""
    if tensor.dtype == torch.bfloat16:
        return as_float32(bits_of(tensor))
    return tensor.float().numpy()


def as_float32(bits: np.ndarray) -> np.ndarray:
    """Bits of bfloat16 (uint16) as float32: they are the upper half of its bits."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
