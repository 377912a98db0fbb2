"""How a sample's file keeps its states. Whatever it is, readers get bfloat16 [T, L, H].

``plain``: as it is. ``lossless``: the same bits in two thirds of the bytes. ``fp8``: half of the
bytes, one per value and a scale per token and state. ``fp8-aux``: the same with the final state in
bfloat16.
"""

from typing import Literal, get_args

from hslib.store.encoding.codec import Codec, Encoded, KeptStates
from hslib.store.encoding.fp8 import Fp8
from hslib.store.encoding.lossless import Lossless
from hslib.store.encoding.plain import DecodedStates, Plain

Encoding = Literal["plain", "lossless", "fp8", "fp8-aux"]
CODECS: dict[str, Codec] = {
    "plain": Plain(),
    "lossless": Lossless(),
    "fp8": Fp8(keeps_last=False),
    "fp8-aux": Fp8(keeps_last=True),
}
WORDS: dict[str, str] = {
    "plain": "bfloat16 as it is",
    "lossless": "bfloat16, compressed without loss",
    "fp8": "FP8 (e4m3), a scale per token and state",
    "fp8-aux": "FP8 (e4m3), a scale per token and state; the final state in bfloat16",
}
assert tuple(CODECS) == tuple(WORDS) == get_args(Encoding)

__all__ = ["Codec", "CODECS", "DecodedStates", "Encoded", "Encoding", "KeptStates", "WORDS"]
