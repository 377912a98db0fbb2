"""bfloat16 as it is; read from the file's map, without a copy."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hslib.store.encoding.codec import Encoded, Shape, Tensor


@dataclass(frozen=True, eq=False)
class Plain:
    """The codec (:class:`hslib.store.encoding.codec.Codec`)."""

    is_lossy: bool = False

    def encode(self, bits: np.ndarray) -> Encoded:
        return Encoded({"hidden_states": Tensor("BF16", bits.shape, bits)})

    def tensors(
        self, shape: Shape, _found: Mapping[str, np.ndarray]
    ) -> dict[str, tuple[str, Shape]]:
        return {"hidden_states": ("BF16", shape)}

    def kept(self, found: Mapping[str, np.ndarray], _shape: Shape, _path: str) -> "DecodedStates":
        return DecodedStates(found["hidden_states"])

    def share(self, _num_states: int, _hidden_size: int) -> float:
        return 1.0


@dataclass(frozen=True, eq=False)
class DecodedStates:
    """States that are bfloat16 already (:class:`hslib.store.encoding.codec.KeptStates`)."""

    bits: np.ndarray

    def whole(self) -> np.ndarray:
        return self.bits

    def one(self, number: int) -> np.ndarray:
        return self.bits[:, number]
