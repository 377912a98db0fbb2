"""The whole dataset in memory: the ids of every row."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from hslib.dataset import Rejection, is_table, read_rows
from hslib.rows import Conversation, read_conversation


@dataclass(frozen=True, eq=False)
class DatasetRows:
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
    """A row's ids, and the conversation or text that they were made from.

    ``line``: its number in the file, from 1; 0 where the dataset has no lines.
    """

    index: int
    ids: tuple[int, ...]
    conversation: Conversation | None = None
    text: str = ""
    prompt_tokens: int | None = None  # ids before the first one that trains
    line: int = 0


@dataclass(frozen=True)
class LeftOut:
    """A row that was not compared: an index, its line (0: none), and why, with what to do."""

    index: int
    line: int
    reason: str
    detail: str
    fix: str


def load_rows(path: str | Path) -> DatasetRows:
    """Every row's ids; raises :class:`~hslib.errors.DatasetError` for a broken file."""
    parts, lengths = [], []
    for _, row in read_rows(path):
        ids = None if isinstance(row, Rejection) else row.get("input_ids")
        if not isinstance(ids, list) or not set(map(type, ids)) <= {int}:
            ids = []
        if ids and not (min(ids) >= 0 and max(ids) < 2**31):
            ids = []
        part = np.array(ids, "<i4")
        parts.append(part)
        lengths.append(len(part) or -1)
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    flat = np.concatenate(parts) if parts else np.zeros(0, "<i4")
    return DatasetRows(np.array(lengths, np.int64), flat, offsets)


def row_name(index: int, line: int) -> str:
    """``row 3 (line 4)``; without the line where the dataset is no file of lines."""
    return f"row {index} (line {line})" if line else f"row {index}"


def text_rows(path: str | Path, limit: int) -> tuple[list[TextRow], list[LeftOut]]:
    """Rows that carry ``messages``, ``conversations`` or ``text`` beside their ids.

    Args:
        limit: at most this many; 0 = all.

    Returns:
        The rows, and those that have text or should have, but can't be understood.
    """
    has_lines = Path(path).is_file() and not is_table(Path(path))
    found: list[TextRow] = []
    left_out: list[LeftOut] = []
    for index, row in read_rows(path, columns=None):
        if limit and len(found) + len(left_out) >= limit:
            break
        read = _text_row(index, row, index + 1 if has_lines else 0)
        if isinstance(read, TextRow):
            found.append(read)
        elif read is not None:
            left_out.append(read)
    return found, left_out


def _text_row(index: int, row: dict[str, Any] | Rejection, line: int) -> TextRow | LeftOut | None:
    """None for a row without ids or without text."""
    if isinstance(row, Rejection):
        return LeftOut(index, line, row.reason, row.detail, row.fix)
    ids = row.get("input_ids")
    if not isinstance(ids, list) or not ids or not set(map(type, ids)) <= {int}:
        return None
    given = row.get("loss_mask")
    mask = given if isinstance(given, list) else ()
    first = next((at for at, value in enumerate(mask) if value), None)
    is_whole = not any(row.get(name) for name in ("completion", "response", "chosen"))
    text = row.get("text") or (row.get("prompt") if is_whole else "")
    if row.get("messages") is None and row.get("conversations") is None:
        if not isinstance(text, str) or not text:
            return None
        return TextRow(index, tuple(ids), None, text, first, line)
    read = read_conversation(index, row)
    if isinstance(read, Rejection):
        return LeftOut(index, line, read.reason, read.detail, read.fix)
    return TextRow(index, tuple(ids), read, "", first, line)
