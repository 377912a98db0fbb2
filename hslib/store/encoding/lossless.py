"""The two bytes of each bfloat16 apart, and the one compressed that repeats itself.

::

    hidden_states.low      U8 [L, T, H]   the exponent's last bit and the mantissa, nearly noise
    hidden_states.high     U8 [N]         sign and the exponent's other bits, in zstd frames
    hidden_states.frames   I64 [L, C]     bytes of each frame: FRAME_BYTES // H tokens of one state

The exponents of a state lie close together but have no repeats worth finding: only entropy coding
helps. zstd's smallest hash table and longest match leave it little else to do. That is several
times as fast as zstd's own levels, and saves more than they do (``tests/bench/encodings.py``).
"""

import itertools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import zstandard

from hslib.files import TensorFileError
from hslib.store.encoding.codec import Encoded, Shape, Tensor

FRAME_BYTES = 1 << 18  # before compression; what is at work stays in a core's cache
_EXPECTED_SHARE = 0.68  # what states of normal spread come to
_PARAMETERS = zstandard.ZstdCompressionParameters(
    window_log=17,
    chain_log=6,
    hash_log=6,
    search_log=1,
    min_match=7,
    target_length=0,
    strategy=zstandard.STRATEGY_FAST,
    write_checksum=True,
)
_own = threading.local()  # zstd's contexts are for one thread each


@dataclass(frozen=True, eq=False)
class Lossless:
    """The codec (:class:`hslib.store.encoding.codec.Codec`)."""

    is_lossy: bool = False

    def encode(self, bits: np.ndarray) -> Encoded:
        tokens, states, hidden = bits.shape
        low = np.empty((states, tokens, hidden), np.uint8)
        frames = []
        for state, part in _parts(bits.shape):
            values = bits[part, state]
            np.copyto(low[state, part], values, casting="unsafe")  # the low byte
            high = np.right_shift(values, 8).astype(np.uint8)
            frames.append(_compress(high))
        high_bytes = b"".join(frames)
        sizes = np.array([len(frame) for frame in frames], "<i8").reshape(states, -1)
        return Encoded(
            {
                "hidden_states.low": Tensor("U8", low.shape, low),
                "hidden_states.high": Tensor("U8", (len(high_bytes),), high_bytes),
                "hidden_states.frames": Tensor("I64", sizes.shape, sizes),
            }
        )

    def tensors(
        self, shape: Shape, found: Mapping[str, np.ndarray]
    ) -> dict[str, tuple[str, Shape]]:
        tokens, states, hidden = shape
        high = found.get("hidden_states.high")
        return {
            "hidden_states.low": ("U8", (states, tokens, hidden)),
            "hidden_states.high": ("U8", (0 if high is None else high.size,)),
            "hidden_states.frames": ("I64", (states, -(-tokens // _frame_tokens(hidden)))),
        }

    def kept(self, found: Mapping[str, np.ndarray], shape: Shape, path: str) -> "SplitStates":
        low, high, sizes = (found[f"hidden_states.{name}"] for name in ("low", "high", "frames"))
        sizes = sizes.ravel()
        if ((sizes < 0) | (sizes > high.size)).any() or sizes.sum() != high.size:
            raise TensorFileError("its frames are not as long as their list says", path=path)
        frames = np.split(high, np.cumsum(sizes)[:-1])
        return SplitStates(low, frames, shape, path)

    def share(self, _num_states: int, _hidden_size: int) -> float:
        return _EXPECTED_SHARE


@dataclass(frozen=True, eq=False)
class SplitStates:
    """States in two planes (:class:`hslib.store.encoding.codec.KeptStates`)."""

    low: np.ndarray
    frames: list[np.ndarray]
    shape: Shape
    path: str

    def whole(self) -> np.ndarray:
        bits = np.empty(self.shape, np.uint16)
        for frame, (state, part) in zip(self.frames, _parts(self.shape), strict=True):
            self._join(frame, self.low[state, part], bits[part, state])
        return bits

    def one(self, number: int) -> np.ndarray:
        bits = np.empty((self.shape[0], self.shape[2]), np.uint16)
        for frame, (state, part) in zip(self.frames, _parts(self.shape), strict=True):
            if state == number:
                self._join(frame, self.low[state, part], bits[part])
        return bits

    def _join(self, frame: np.ndarray, low: np.ndarray, target: np.ndarray) -> None:
        target[:] = _decompress(frame, low.size, self.path).reshape(low.shape)
        target <<= 8
        target |= low


def _parts(shape: Shape) -> Iterator[tuple[int, slice]]:
    """State and tokens of each frame, in order."""
    tokens, states, hidden = shape
    step = _frame_tokens(hidden)
    for state, start in itertools.product(range(states), range(0, tokens, step)):
        yield state, slice(start, start + step)


def _frame_tokens(hidden_size: int) -> int:
    return max(1, FRAME_BYTES // hidden_size)


def _decompress(frame: np.ndarray, size: int, path: str) -> np.ndarray:
    """uint8 [size]; nothing is allocated unless the frame says that it has this size."""
    try:
        if zstandard.frame_content_size(frame.data) != size:
            raise TensorFileError("a compressed frame has another size", path=path, expected=size)
        content = _decompressor().decompress(frame.data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise TensorFileError(f"a compressed frame is damaged: {error}", path=path) from error
    return np.frombuffer(content, np.uint8)


def _compress(values: np.ndarray) -> bytes:
    if not hasattr(_own, "compressor"):
        _own.compressor = zstandard.ZstdCompressor(compression_params=_PARAMETERS)
    compressor: zstandard.ZstdCompressor = _own.compressor
    return compressor.compress(values.data)


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_own, "decompressor"):
        _own.decompressor = zstandard.ZstdDecompressor()
    decompressor: zstandard.ZstdDecompressor = _own.decompressor
    return decompressor
