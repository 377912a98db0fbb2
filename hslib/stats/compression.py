"""Can the states be made smaller? Measured on the store's own bytes, each method in one thread.

A bf16 value has one byte of sign and exponent, but for the exponent's last bit, and one byte of
that bit and the mantissa. The first repeats itself, the second is nearly noise. A compressor
that sees the two in turns finds little; one that sees each by itself finds what there is. FP8 is
not lossless: one byte per value, and one scale per token and state.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import zstandard

from hslib.errors import StoreError
from hslib.store import Store

if TYPE_CHECKING:
    import pandas
    import torch

_BYTES_PER_SAMPLE = 4 << 20
_FP8_MAX = 448.0  # largest finite float8_e4m3fn (Micikevicius et al. 2022, table 1)
_ZSTD_LEVEL = 3

Bits = np.ndarray  # uint16 [t, L, H], bf16 bits of t tokens


@dataclass(frozen=True)
class Method:
    """``pack`` gives what would be stored; ``unpack`` the states back, given their shape."""

    name: str
    is_lossless: bool
    pack: Callable[[Bits], tuple[bytes, ...]]
    unpack: Callable[[tuple[bytes, ...], tuple[int, ...]], Bits]


def draw_states(store: Store, seed: int, max_bytes: int) -> list[Bits]:
    """Runs of whole tokens from samples in random order, together about ``max_bytes``.

    Raises:
        StoreError: the store is empty.
    """
    import torch

    if not store.entries:
        raise StoreError("the store holds no sample yet", fix="run notebook 03 first")
    rng = np.random.default_rng(seed)
    drawn: list[Bits] = []
    left = max_bytes
    for index in rng.permutation(list(store.entries)):
        states = store[int(index)].hidden_states
        tokens = max(1, min(_BYTES_PER_SAMPLE, left) // (states[0].numel() * 2))
        start = int(rng.integers(0, max(len(states) - tokens, 0) + 1))
        part = states[start : start + tokens].clone()
        drawn.append(part.view(torch.int16).numpy().view(np.uint16))
        left -= drawn[-1].nbytes
        if left <= 0:
            break
    return drawn


def methods() -> tuple[Method, ...]:
    """What is compared, the plain one first."""
    return (
        Method("zstd", True, lambda bits: (_zstd(bits),), _unpack_zstd),
        Method("byte planes + zstd", True, _pack_planes, _unpack_planes),
        Method("FP8 per token", False, _pack_fp8, _unpack_fp8),
    )


def compare_compression(drawn: Sequence[Bits]) -> "pandas.DataFrame":
    """Every method on all that was drawn.

    Returns a line per method: ``method, lossless, ratio`` (stored / original bytes),
    ``pack_mb_s``, ``unpack_mb_s`` (original MB per second), ``relative_error`` (Frobenius norm).

    Raises:
        ArithmeticError: a lossless method gave other bytes back.
    """
    import pandas

    return pandas.DataFrame([_measure(method, drawn) for method in methods()])


def _measure(method: Method, drawn: Sequence[Bits]) -> dict[str, object]:
    size = stored = 0
    pack_s = unpack_s = error = power = 0.0
    for bits in drawn:
        started = time.perf_counter()
        parts = method.pack(bits)
        packed = time.perf_counter()
        back = method.unpack(parts, bits.shape)
        unpack_s += time.perf_counter() - packed
        pack_s += packed - started
        size, stored = size + bits.nbytes, stored + sum(map(len, parts))
        if method.is_lossless and not np.array_equal(back, bits):
            raise ArithmeticError(f"{method.name} did not give the same bytes back")
        original = _values(bits)
        error += float((_values(back) - original).square().sum())
        power += float(original.square().sum())
    return {
        "method": method.name,
        "lossless": method.is_lossless,
        "ratio": stored / size,
        "pack_mb_s": size / 1e6 / max(pack_s, 1e-9),
        "unpack_mb_s": size / 1e6 / max(unpack_s, 1e-9),
        "relative_error": (error / power) ** 0.5 if power else 0.0,
    }


def recommend_compression(compared: "pandas.DataFrame") -> str:
    """What to do about it, in words. Pure."""
    plain = compared.iloc[0]
    lossless = compared[compared["lossless"]]
    best = lossless.loc[lossless["ratio"].idxmin()]
    lossy = compared[~compared["lossless"]].iloc[0]
    if best["ratio"] > 0.95:
        text = f"Not worth it without loss: the best, {best['method']}, saves {_saved(best)}."
    else:
        text = (
            f"Without loss, {best['method']} saves {_saved(best)}. Plain zstd saves "
            f"{_saved(plain)}: it mixes the two bytes of a value, of which one compresses."
        )
    return (
        f"{text} {lossy['method']} saves {_saved(lossy)} at a relative error of "
        f"{lossy['relative_error']:.0%}. Before you use it, train on a part of the data stored "
        "both ways and compare the acceptance."
    )


def _saved(line: "pandas.Series") -> str:
    return f"{max(0.0, 1 - line['ratio']):.0%}"


# --- the methods --------------------------------------------------------------------------


def _zstd(data: np.ndarray) -> bytes:
    return zstandard.compress(data.data.cast("B"), _ZSTD_LEVEL)


def _unpack_zstd(parts: tuple[bytes, ...], shape: tuple[int, ...]) -> Bits:
    return np.frombuffer(zstandard.decompress(parts[0]), np.uint16).reshape(shape)


def _pack_planes(bits: Bits) -> tuple[bytes, ...]:
    turned = (bits << 1) | (bits >> 15)  # the sign joins the mantissa: the exponent is whole
    return _zstd((turned >> 8).astype(np.uint8)), _zstd(turned.astype(np.uint8))


def _unpack_planes(parts: tuple[bytes, ...], shape: tuple[int, ...]) -> Bits:
    high, low = (np.frombuffer(zstandard.decompress(part), np.uint8) for part in parts)
    turned = (high.astype(np.uint16) << 8) | low
    return ((turned >> 1) | (turned << 15)).reshape(shape)


def _pack_fp8(bits: Bits) -> tuple[bytes, ...]:
    import torch

    values = _values(bits)
    scales = values.abs().amax(dim=-1, keepdim=True) / _FP8_MAX
    scales = torch.where(scales > 0, scales, 1.0)
    small = (values / scales).to(torch.float8_e4m3fn)
    return small.view(torch.uint8).numpy().tobytes(), scales.numpy().tobytes()


def _unpack_fp8(parts: tuple[bytes, ...], shape: tuple[int, ...]) -> Bits:
    import torch

    small = torch.from_numpy(np.frombuffer(parts[0], np.uint8).copy()).view(torch.float8_e4m3fn)
    scales = torch.from_numpy(np.frombuffer(parts[1], np.float32).copy())
    values = small.view(shape).float() * scales.view(*shape[:-1], 1)
    return values.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


def _values(bits: Bits) -> "torch.Tensor":
    """float32 of bf16 bits."""
    import torch

    writable = bits if bits.flags.writeable else bits.copy()  # else torch warns
    return torch.from_numpy(writable.view(np.int16)).view(torch.bfloat16).float()
