"""Which tokens of a row train, by the columns in which data sets say so. Pure.

A column that is null counts as absent. Columns that say different things reject the row.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hslib.dataset.sample import RowFault

# In the order in which one is taken. TRL writes completion_mask and assistant_masks, transformers
# assistant_masks, prompt_mask has 1 where a token does NOT train.
MASK_COLUMNS = (
    "loss_mask",
    "labels",
    "assistant_masks",
    "assistant_mask",
    "assistant_tokens_mask",
    "completion_mask",
    "prompt_mask",
    "prompt_masks",
    "prompt_tokens_mask",
)
_INVERTED = ("prompt_mask", "prompt_masks", "prompt_tokens_mask")
_NOT_TRAINED = -100  # in labels, as torch's cross entropy has it


class Mask(NamedTuple):
    """uint8 [T], 1 = trains; ``column`` is "" where no column says it, and all tokens train."""

    values: np.ndarray
    column: str


def read_mask(row: Mapping[str, Any], ids: np.ndarray, column: str = "") -> Mask | RowFault:
    """Which of ``ids``, int32 [T], train.

    Args:
        column: the only one that counts; "" = all of ``MASK_COLUMNS`` that the row has.
    """
    if column:
        if row.get(column) is None:
            fix = "write it for every row, or leave mask_column empty"
            return RowFault("no_mask", f"the row has no {column}", fix)
        names = [column]
    else:
        names = [name for name in MASK_COLUMNS if row.get(name) is not None]
        if "labels" in names and not _says_what_trains(row["labels"], row["input_ids"], names):
            names.remove("labels")
    found = Mask(np.ones(len(ids), np.uint8), "")
    for name in names:
        values = _from_labels(row[name], ids) if name == "labels" else _read(name, row[name], ids)
        if isinstance(values, RowFault):
            return values
        if found.column and (differing := np.flatnonzero(found.values != values)).size:
            return _disagreement(found, Mask(values, name), differing)
        found = Mask(values, found.column or name)
    return found


def read_flags(name: str, values: Any, num_tokens: int) -> np.ndarray | RowFault:
    """One 0 or 1 per token, as uint8 [T]."""
    try:
        flags = np.frombuffer(bytearray(values), np.uint8) if isinstance(values, list) else None
    except (TypeError, ValueError):  # not integers; not in 0..255
        flags = None
    if flags is None or (flags > 1).any():
        fix = "write one flat list of 0 and 1"
        return RowFault("mask_values", f"{name} is {show(values)}", fix)
    return _wrong_length(name, len(flags), num_tokens) or flags


def _read(name: str, values: Any, ids: np.ndarray) -> np.ndarray | RowFault:
    flags = read_flags(name, values, len(ids))
    if isinstance(flags, RowFault) or not is_inverted(name):
        return flags
    return np.asarray(1 - flags, np.uint8)


def is_inverted(column: str) -> bool:
    """Whether 1 means the prompt, which does not train."""
    return column in _INVERTED


def _says_what_trains(labels: Any, ids: list[int], names: list[str]) -> bool:
    """Not a class or topics of the row, and not a copy of the ids, which trains all of them."""
    if not isinstance(labels, list) or isinstance((labels or [0])[0], str) or labels == ids:
        return False
    is_only = names == ["labels"]
    return is_only or (len(labels) == len(ids) and set(map(type, labels)) == {int})


def _from_labels(labels: Any, ids: np.ndarray) -> np.ndarray | RowFault:
    try:
        wanted = np.asarray(labels)
    except ValueError:  # lists of several lengths
        wanted = np.empty(0)
    if wanted.ndim != 1 or wanted.dtype.kind != "i":
        fix = f"write the id of each token that trains, {_NOT_TRAINED} for the others"
        return RowFault("mask_values", f"labels is {show(labels)}", fix)
    if fault := _wrong_length("labels", len(wanted), len(ids)):
        return fault
    trains: np.ndarray = wanted != _NOT_TRAINED
    wrong = np.flatnonzero(trains & (wanted != ids))
    if not wrong.size:
        return trains.astype(np.uint8)
    at = wrong[0]
    detail = f"labels has {wanted[at]} at position {at}, input_ids {ids[at]}"
    if trains[:-1].any() and not (trains[:-1] & (wanted[:-1] != ids[1:])).any():
        detail += "; they fit when shifted by one: labels[i] is input_ids[i + 1]"
    fix = "write labels at the positions of their ids, unshifted; trainers shift for themselves"
    return RowFault("labels_disagree", detail, fix)


def _wrong_length(name: str, length: int, num_tokens: int) -> RowFault | None:
    if length == num_tokens:
        return None
    detail = f"{name} has {length} entries, input_ids {num_tokens}"
    return RowFault("mask_length", detail, "make one mask entry per id")


def _disagreement(one: Mask, other: Mask, differing: np.ndarray) -> RowFault:
    at = differing[0]
    yes, no = (one, other) if one.values[at] else (other, one)
    return RowFault(
        "masks_disagree",
        f"by {yes.column} the token at position {at} trains, by {no.column} not; they differ at "
        f"{differing.size} of {len(one.values)} positions",
        f'set mask_column to the one that is meant, such as "{one.column}"',
    )


def show(value: Any) -> str:
    """A value as a row's evidence, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
