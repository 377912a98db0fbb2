"""Can the states be made smaller? Measured on the store's own bytes, each method in one thread.

A bf16 value is a byte of sign and exponent (all but its last bit), and a byte of that bit and
the mantissa. The first repeats itself, the second is nearly noise: a compressor that sees them in
turns finds little, one that sees them apart finds what there is. FP8 is not lossless: it keeps
one byte a value and a scale a token and state.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hslib.errors import StoreError
from hslib.store import Store

if TYPE_CHECKING:
    import pandas
    import torch

_BLOCK_BYTES = 4 << 20
_FP8_MAX = 448.0  # largest finite float8_e4m3fn (Micikevicius et al. 2022, table 1)
_ZSTD_LEVEL = 3

Bits = np.ndarray  # uint16 [t, L, H], bf16 bits


@dataclass(frozen=True)
class Method:
    """``pack`` gives what would be stored; ``unpack`` the states back, given their shape."""

    name: str
    is_lossless: bool
    pack: Callable[[Bits], tuple[bytes, ...]]
    unpack: Callable[[tuple[bytes, ...], tuple[int, ...]], Bits]


def draw_blocks(store: Store, seed: int, max_bytes: int) -> list[Bits]:
    """Runs of whole tokens from samples in random order, together about ``max_bytes``.

    Raises:
        StoreError: the store is empty.
    """
    import torch

    rng = np.random.default_rng(seed)
    blocks: list[Bits] = []
    left = max_bytes
    for index in rng.permutation(list(store.entries)):
        states = store[int(index)].hidden_states
        rows = max(1, min(_BLOCK_BYTES, left) // (states[0].numel() * 2))
        start = int(rng.integers(0, max(len(states) - rows, 0) + 1))
        block = states[start : start + rows].clone().view(torch.int16).numpy().view(np.uint16)
        blocks.append(block)
        left -= block.nbytes
        if left <= 0:
            return blocks
    if not blocks:
        raise StoreError("the store holds no sample yet", fix="run notebook 03 first")
    return blocks


def size_of(blocks: Sequence[Bits]) -> str:
    """How much was drawn, in words."""
    return f"{sum(block.nbytes for block in blocks) / 1e6:.0f} MB"


def methods() -> tuple[Method, ...]:
    """What is compared, the plain first."""
    return (
        Method("zstd", True, _pack_zstd, _unpack_zstd),
        Method("byte planes + zstd", True, _pack_planes, _unpack_planes),
        Method("bit shuffle + zstd (blosc2)", True, _pack_bits, _unpack_bits),
        Method("FP8 a token", False, _pack_fp8, _unpack_fp8),
    )


def compare(blocks: Sequence[Bits]) -> "pandas.DataFrame":
    """Every method on every block.

    Returns a line a method: ``method, lossless, ratio`` (stored / original bytes), ``pack_mb_s``,
    ``unpack_mb_s`` (original MB a second), ``relative_error`` (Frobenius norm, all values).

    Raises:
        ArithmeticError: a lossless method gave other bytes back.
    """
    import pandas

    return pandas.DataFrame([_measure(method, blocks) for method in methods()])


def _measure(method: Method, blocks: Sequence[Bits]) -> dict[str, object]:
    size = stored = 0
    pack_s = unpack_s = error = power = 0.0
    for block in blocks:
        started = time.perf_counter()
        parts = method.pack(block)
        packed = time.perf_counter()
        back = method.unpack(parts, block.shape)
        unpack_s += time.perf_counter() - packed
        pack_s += packed - started
        size, stored = size + block.nbytes, stored + sum(map(len, parts))
        if method.is_lossless and not np.array_equal(back, block):
            raise ArithmeticError(f"{method.name} did not give the same bytes back")
        original = _values(block)
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


def recommend(table: "pandas.DataFrame") -> str:
    """What to do about it, in words. Pure."""
    plain = table.iloc[0]
    lossless = table[table["lossless"]]
    best = lossless.loc[lossless["ratio"].idxmin()]
    lossy = table[~table["lossless"]].iloc[0]
    if best["ratio"] > 0.95:
        text = f"Not worth it without loss: the best, {best['method']}, saves {_saved(best)}."
    else:
        text = (
            f"Without loss, {best['method']} saves {_saved(best)}; plain zstd, which sees the "
            f"bytes of a value in turns, {_saved(plain)}."
        )
    return (
        f"{text} {lossy['method']} saves {_saved(lossy)} at a relative error of "
        f"{lossy['relative_error']:.0%}: where disk is what limits you, train on a part of it "
        "first and compare the acceptance."
    )


def _saved(line: "pandas.Series") -> str:
    return f"{max(0.0, 1 - line['ratio']):.0%}"


# --- the methods --------------------------------------------------------------------------


def _pack_zstd(block: Bits) -> tuple[bytes, ...]:
    import zstandard

    return (zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(block.data.cast("B")),)


def _unpack_zstd(parts: tuple[bytes, ...], shape: tuple[int, ...]) -> Bits:
    import zstandard

    data = zstandard.ZstdDecompressor().decompress(parts[0])
    return np.frombuffer(data, np.uint16).reshape(shape)


def _pack_planes(block: Bits) -> tuple[bytes, ...]:
    import zstandard

    compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
    turned = (block << 1) | (block >> 15)  # the sign goes to the mantissa, the exponent is whole
    planes = ((turned >> 8).astype(np.uint8), turned.astype(np.uint8))
    return tuple(compressor.compress(plane.data.cast("B")) for plane in planes)


def _unpack_planes(parts: tuple[bytes, ...], shape: tuple[int, ...]) -> Bits:
    import zstandard

    decompressor = zstandard.ZstdDecompressor()
    high, low = (np.frombuffer(decompressor.decompress(part), np.uint8) for part in parts)
    turned = (high.astype(np.uint16) << 8) | low
    return ((turned >> 1) | (turned << 15)).reshape(shape)


def _pack_bits(block: Bits) -> tuple[bytes, ...]:
    import blosc2

    data = blosc2.compress2(
        block.data.cast("B"),
        codec=blosc2.Codec.ZSTD,
        clevel=_ZSTD_LEVEL,
        filters=[blosc2.Filter.BITSHUFFLE],
        typesize=2,
        nthreads=1,
    )
    return (bytes(data),)


def _unpack_bits(parts: tuple[bytes, ...], shape: tuple[int, ...]) -> Bits:
    import blosc2

    return np.frombuffer(blosc2.decompress2(parts[0], nthreads=1), np.uint16).reshape(shape)


def _pack_fp8(block: Bits) -> tuple[bytes, ...]:
    import torch

    values = _values(block)
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


def _values(block: Bits) -> "torch.Tensor":
    """float32 of bf16 bits."""
    import torch

    writable = block if block.flags.writeable else block.copy()  # else torch warns
    return torch.from_numpy(writable.view(np.int16)).view(torch.bfloat16).float()
