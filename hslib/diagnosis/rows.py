"""The whole dataset in memory: the ids of every row."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from hslib.dataset import Rejection, read_rows


@dataclass(frozen=True, eq=False)
class Rows:
    """The ids of all rows; 4 bytes of memory per token.

    ``lengths`` int64 [R] tokens, -1 for a row without ids; ``ids`` int32, row ``r`` at
    ``offsets[r] : offsets[r + 1]``.
    """

    lengths: np.ndarray
    ids: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    def row(self, index: int) -> np.ndarray:
        """int32 [T]."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def digests(self) -> list[str]:
        """xxh3-128 of each row's ids, as the store has it."""
        return [xxhash.xxh3_128_hexdigest(self.row(r).data) for r in range(len(self))]


@dataclass(frozen=True)
class TextRow:
    """A row's ids, and the messages or text that they were made from."""

    index: int
    ids: tuple[int, ...]
    messages: tuple[dict[str, Any], ...] = ()
    text: str = ""
    prompt_tokens: int | None = None  # ids before the first one that trains


def load_rows(path: str | Path) -> Rows:
    """Every row's ids; raises :class:`~hslib.errors.DatasetError` for a broken file."""
    parts, lengths = [], []
    for _, row in read_rows(path):
        ids = None if isinstance(row, Rejection) else row.get("input_ids")
        good = isinstance(ids, list) and set(map(type, ids)) <= {int}
        part = np.array(ids if good else [], np.int64)
        if len(part) and (part.min() < 0 or part.max() > np.iinfo(np.int32).max):
            part = part[:0]
        parts.append(part.astype("<i4"))
        lengths.append(len(part) or -1)
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    flat = np.concatenate(parts) if parts else np.zeros(0, "<i4")
    return Rows(np.array(lengths, np.int64), flat, offsets)


def text_rows(path: str | Path, limit: int) -> Iterator[TextRow]:
    """Rows that carry ``messages`` (or ``conversations``) or ``text`` beside their ids.

    Args:
        limit: at most this many; 0 = all.
    """
    found = 0
    for index, row in read_rows(path, columns=None):
        if isinstance(row, Rejection) or (limit and found >= limit):
            continue
        messages = row.get("messages") or row.get("conversations") or ()
        text = row.get("text") or row.get("prompt") or ""
        ids = row.get("input_ids") or ()
        if not ids or not (messages or (isinstance(text, str) and text)):
            continue
        found += 1
        mask = row.get("loss_mask") or ()
        first = next((at for at, value in enumerate(mask) if value), None)
        yield TextRow(index, tuple(ids), tuple(messages), text if not messages else "", first)
