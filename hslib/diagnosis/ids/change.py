"""How a dataset's row differs from the ids that were stored for it. Pure, of two rows."""

from collections.abc import Callable

import numpy as np

from hslib.diagnosis.catalogue import (
    CUT,
    FIRST_TOKEN,
    LAST_TOKEN,
    OTHER_IDS,
    OTHER_ROW,
    PART,
)

_GRAM = 4  # ids; equal runs of so many show that two rows are of one text
_RELATED = 0.5  # of the ids in common

Text = Callable[[int], str]


def change_of(stored: np.ndarray, row: np.ndarray) -> str:
    """The cause's code. Both int [T], not equal."""
    shorter, longer = sorted((stored, row), key=len)
    missing = len(longer) - len(shorter)
    if missing and np.array_equal(longer[: len(shorter)], shorter):
        return LAST_TOKEN if missing == 1 else CUT
    if missing == 1 and np.array_equal(longer[1:], shorter):
        return FIRST_TOKEN
    if missing and found_at(longer, shorter) >= 0:
        return PART
    return OTHER_IDS if _in_common(stored, row) >= _RELATED else OTHER_ROW


def found_at(longer: np.ndarray, shorter: np.ndarray) -> int:
    """Where one row stands whole in the other; -1: nowhere."""
    text, part = longer.astype("<i4").tobytes(), shorter.astype("<i4").tobytes()
    at = text.find(part)
    while at % 4 and at >= 0:
        at = text.find(part, at + 1)
    return at // 4


def _in_common(a: np.ndarray, b: np.ndarray) -> float:
    """The share of equal ids in place, or of the shorter row's runs that the other has too."""
    in_place = float((a == b).mean()) if len(a) == len(b) else 0.0
    few, many = sorted((_runs(a), _runs(b)), key=len)
    return max(in_place, len(few & many) / max(1, len(few)))


def _runs(ids: np.ndarray) -> set[tuple[int, ...]]:
    values = ids.tolist()
    return {tuple(values[at : at + _GRAM]) for at in range(len(values) - _GRAM + 1)}


def head_of(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading ids agree."""
    size = min(len(a), len(b))
    differs = np.flatnonzero(a[:size] != b[:size])
    return int(differs[0]) if len(differs) else size


def example_of(index: int, stored: np.ndarray, row: np.ndarray, text: Text) -> str:
    """The first position that differs, with both ids, and both lengths. ``text``: of an id."""
    at = head_of(stored, row)
    sides = [
        f"{name} {_id_at(ids, at, text)}" for name, ids in (("stored", stored), ("dataset", row))
    ]
    if len(stored) == len(row):
        count = int((stored != row).sum())
        lengths = f"lengths equal, {count} id{'s' * (count != 1)} of {len(row)} differ"
        lengths += "s" * (count == 1)
    else:
        lengths = f"stored {len(stored)} tokens, dataset {len(row)}"
    return f"sample {index}, position {at}: {', '.join(sides)}; {lengths}"


def _id_at(ids: np.ndarray, at: int, text: Text) -> str:
    if at >= len(ids):
        return "ends"
    shown = text(int(ids[at]))
    is_readable = shown and "\ufffd" not in shown  # a token may be a part of a character
    return f"{ids[at]} ({shown!r})" if is_readable else str(ids[at])
