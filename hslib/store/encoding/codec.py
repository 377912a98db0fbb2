"""What an encoding does: states to the tensors of a file, and back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

Shape = tuple[int, ...]


class Tensor(NamedTuple):
    """A tensor of a file: its safetensors dtype, its shape, and its bytes."""

    dtype: str
    shape: Shape
    data: bytes | np.ndarray

    @property
    def bytes(self) -> bytes | memoryview:
        if isinstance(self.data, bytes):
            return self.data
        return self.data.reshape(-1).data.cast("B") if self.data.size else b""


@dataclass(frozen=True, eq=False)
class Encoded:
    """States as ``tensors`` of a file, by name and in order.

    ``decoded``: uint16 [T, L, H], what readers get; None: what was given. ``errors``: per state the
    largest relative error (L2) of a token; empty: none.
    """

    tensors: dict[str, Tensor]
    decoded: np.ndarray | None = None
    errors: tuple[float, ...] = ()


class KeptStates(Protocol):
    """The states of an opened file, decoded when they are asked for.

    Both methods raise :class:`TensorFileError` where the bytes are none of such states.
    """

    def whole(self) -> np.ndarray:
        """uint16 [T, L, H], the bits of bfloat16."""

    def one(self, number: int) -> np.ndarray:
        """uint16 [T, H], one state."""


class Codec(Protocol):
    """An encoding; its names begin with ``hidden_states``."""

    @property
    def is_lossy(self) -> bool: ...

    def encode(self, bits: np.ndarray) -> Encoded:
        """Of uint16 [T, L, H], the bits of finite bfloat16 values."""

    def tensors(
        self, shape: Shape, found: Mapping[str, np.ndarray]
    ) -> dict[str, tuple[str, Shape]]:
        """dtype and shape of each tensor for states of ``shape`` (T, L, H).

        Args:
            found: a file's arrays, where a length depends on the values.
        """

    def kept(self, found: Mapping[str, np.ndarray], shape: Shape, path: str) -> KeptStates:
        """The states in a file whose tensors are of these dtypes and shapes."""

    def share(self, num_states: int, hidden_size: int) -> float:
        """Bytes in a file / bytes in bfloat16, before any state was seen."""
