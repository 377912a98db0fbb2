"""Whether a dump is a sample's states: the one gate before anything is stored."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

from hslib.dataset import Sample
from hslib.errors import DumpError
from hslib.server.dumps import Dump
from hslib.server.plugin_info import Expected

_EXPONENT = 0x7F80  # a bf16 whose exponent bits are all set is inf or nan


def validate(dump: Dump, sample: Sample, expected: Expected) -> "xxhash.xxh3_64":
    """Raise unless a dump is this sample's states; nothing is stored without this check.

    Returns:
        The running xxh3-64 of the states' bytes, so that the store need not hash them again.

    Raises:
        DumpError: with the check's name, what was expected, and what came.
    """
    _check_tokens(dump, sample)
    shape = (sample.num_tokens, expected.num_states, expected.hidden_size)
    for check, wanted, got in (
        ("boundaries", expected.boundaries, dump.meta.boundaries),
        ("shape", shape, dump.hidden_states.shape),
        ("dtype", "bfloat16", dump.meta.dtype),
        ("num_tokens", sample.num_tokens, dump.meta.num_tokens),
        ("numbers of each state", expected.num_states, len(dump.meta.layers)),
        ("final", expected.stores_final, dump.meta.stores_final),
    ):
        if wanted != got:
            _fail(dump, sample, check, wanted, got)
    states_hash = xxhash.xxh3_64(dump.hidden_states.data)
    if states_hash.hexdigest() != dump.meta.checksums.get("hidden_states"):
        promised = dump.meta.checksums.get("hidden_states")
        _fail(dump, sample, "checksum", promised, states_hash.hexdigest())
    _check_values(dump, sample, expected)
    _check_witness(dump, sample, expected)
    return states_hash


def _check_tokens(dump: Dump, sample: Sample) -> None:
    if len(dump.input_ids) != sample.num_tokens:
        _fail(dump, sample, "rows", sample.num_tokens, len(dump.input_ids))
    differs = np.flatnonzero(dump.input_ids != sample.input_ids)
    if len(differs):
        at = int(differs[0])
        wanted, got = int(sample.input_ids[at]), int(dump.input_ids[at])
        _fail(dump, sample, f"input_ids at {at}", wanted, got)


def _check_values(dump: Dump, sample: Sample, expected: Expected) -> None:
    """Finite, and no state all zero or constant; by the server's numbers of the hashed bytes."""
    for number, layer in enumerate(dump.meta.layers):
        label = state_label(number, expected.boundaries)
        if not layer.finite:
            row = first_non_finite(dump.hidden_states[:, number])
            _fail(dump, sample, f"finite ({label})", "finite values", f"inf or nan in row {row}")
        if layer.zero_share == 1.0:
            _fail(dump, sample, f"not all zero ({label})", "values", "only zeros")
        first = dump.hidden_states[0, number]
        if (first == first[0]).all() and (dump.hidden_states[:, number] == first[0]).all():
            _fail(dump, sample, f"not constant ({label})", "values", "one value throughout")


def _check_witness(dump: Dump, sample: Sample, expected: Expected) -> None:
    """Each state is what its layer read, by the witness errors that the server measured."""
    limits = zip(dump.meta.layers, expected.limits, strict=True)
    for number, (layer, limit) in enumerate(limits):
        if limit is None:
            continue
        label = state_label(number, expected.boundaries)
        got = layer.witness if dump.meta.witnessed_tokens else None
        if got is None or not got <= limit:
            wanted = f"an error up to {limit:g}"
            _fail(dump, sample, f"witness ({label})", wanted, "no witness" if got is None else got)


def first_non_finite(states: np.ndarray) -> int:
    """First row of uint16 [T, H] (bf16 bits) that holds inf or nan; -1 when none does."""
    rows = np.flatnonzero(((states & _EXPONENT) == _EXPONENT).any(axis=-1))
    return int(rows[0]) if len(rows) else -1


def state_label(number: int, boundaries: Sequence[int]) -> str:
    """``"boundary 31"`` or ``"final"`` for the ``number``-th stored state."""
    return f"boundary {boundaries[number]}" if number < len(boundaries) else "final"


def _fail(dump: Dump, sample: Sample, check: str, expected: Any, got: Any) -> None:
    raise DumpError(
        f"dump {dump.name} is not sample {sample.index}'s states: {check}",
        index=sample.index,
        check=check,
        expected=expected,
        got=got,
        path=str(dump.path),
    )
