"""What would each encoding save? Measured on the store's own states, each in one thread."""

import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hslib.errors import StoreError
from hslib.files import header_bytes, parse_tensors
from hslib.store import CODECS, Store

if TYPE_CHECKING:
    import pandas

_BYTES_PER_SAMPLE = 4 << 20
_WORTH_IT = 0.95  # of the bytes left

Bits = np.ndarray  # uint16 [t, L, H], bf16 bits of t tokens


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


def compare_compression(drawn: Sequence[Bits]) -> "pandas.DataFrame":
    """Every encoding but ``plain`` on all that was drawn.

    Returns a line per encoding: ``encoding, lossless, ratio`` (encoded / bf16 bytes),
    ``pack_mb_s``, ``unpack_mb_s`` (bf16 MB per second), ``relative_error`` (L2, of the token and
    state that lose most).

    Raises:
        ArithmeticError: a lossless encoding gave other bits back.
    """
    import pandas

    return pandas.DataFrame([_measure(name, drawn) for name in CODECS if name != "plain"])


def _measure(name: str, drawn: Sequence[Bits]) -> dict[str, object]:
    codec = CODECS[name]
    size = encoded_size = 0
    pack_s = unpack_s = error = 0.0
    for bits in drawn:
        started = time.perf_counter()
        encoded = codec.encode(bits)
        packed = time.perf_counter()
        parts = [bytes(tensor.bytes) for tensor in encoded.tensors.values()]
        described = {key: (tensor.dtype, tensor.shape) for key, tensor in encoded.tensors.items()}
        file = parse_tensors(name, header_bytes(described, {}) + b"".join(parts))
        opened = time.perf_counter()
        back = codec.kept(file.arrays, bits.shape, name).whole()
        unpack_s += time.perf_counter() - opened
        pack_s += packed - started
        size, encoded_size = size + bits.nbytes, encoded_size + sum(map(len, parts))
        if not codec.is_lossy and not np.array_equal(back, bits):
            raise ArithmeticError(f"{name} did not give the same bits back")
        error = max(error, *encoded.errors, 0.0)
    return {
        "encoding": name,
        "lossless": not codec.is_lossy,
        "ratio": encoded_size / size,
        "pack_mb_s": size / 1e6 / max(pack_s, 1e-9),
        "unpack_mb_s": size / 1e6 / max(unpack_s, 1e-9),
        "relative_error": error,
    }


def recommend_compression(compared: "pandas.DataFrame", store: Store, name: str) -> str:
    """What to do about it, in words, with the command.

    Args:
        name: the store, as a command is given it.
    """
    if {entry.encoding for entry in store.entries.values()} != {"plain"}:
        return f"The store's samples are encoded already ({store.encoding_sentence()})."
    lines = {line["encoding"]: line for line in compared.to_dict("records")}
    lossless, fp8 = lines["lossless"], lines["fp8"]
    command = f"python -m hslib recode {shlex.quote(name)} OUT --encoding"
    if lossless["ratio"] > _WORTH_IT:
        text = f"Compression without loss would save only {_saved(lossless)}."
    else:
        text = f"Without loss, {_saved(lossless)} can be saved: `{command} lossless`."
    return (
        f"{text} FP8 saves {_saved(fp8)} (`--encoding fp8`); no token's state changes by more "
        f"than {fp8['relative_error']:.1%}. Before you rely on it, train on a part of the data "
        "stored both ways and compare the acceptance; notebook 06 does that for the demo."
    )


def _saved(line: dict[str, float]) -> str:
    return f"{max(0.0, 1 - line['ratio']):.0%}"
