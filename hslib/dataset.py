"""The rows of a dataset: samples fit to be extracted, and rejections with their reasons.

An index is the 0-based row number. JSON lines are split on ``\\n`` only: a U+2028 inside a string
or a CRLF shifts no index.
"""

import gzip
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import xxhash
import zstandard

from hslib.errors import DatasetError

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Limits:
    """What a row must fit: ids in ``0 .. vocab_size-1``, at most ``max_tokens`` tokens."""

    vocab_size: int
    max_tokens: int


@dataclass(frozen=True, eq=False)
class Sample:
    """A row that is fit to be extracted. ``input_ids`` int32 [T], ``loss_mask`` uint8 [T]."""

    index: int
    id: str
    input_ids: np.ndarray
    loss_mask: np.ndarray
    has_mask: bool = True
    has_id: bool = True  # else ``id`` is the index

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)

    @cached_property
    def digest(self) -> str:
        """xxh3-128 (32 hex digits) of the ids as little-endian int32."""
        return xxhash.xxh3_128_hexdigest(self.input_ids.astype("<i4", copy=False).data)

    @cached_property
    def mask_digest(self) -> str:
        """xxh3-64 (16 hex digits) of the loss mask's bytes."""
        return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(self.loss_mask).data)


@dataclass(frozen=True)
class Rejection:
    """A row that is never sent: the reason's code, the evidence, and the cure."""

    index: int
    id: str
    reason: str
    detail: str
    fix: str


@dataclass(frozen=True, slots=True)
class RowInfo:
    """What a survey keeps of a good row; the ids are read again when it is sent."""

    index: int
    id: str
    num_tokens: int
    digest: str
    mask_digest: str


@dataclass(frozen=True)
class Survey:
    """One pass over the whole dataset."""

    rows: list[RowInfo]
    rejections: list[Rejection]
    num_rows: int
    zero_masks: int  # good rows whose mask is all zero: no token of them is trained on
    missing_masks: int  # good rows without loss_mask: taken as all ones
    digest: str  # xxh3-128 over the rows' digests in order
    end: int  # the first index that was not read: the limit, else sys.maxsize

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)


@dataclass(frozen=True)
class Dataset:
    """A JSONL or Parquet file; gzip and zstd are recognised by content, not by suffix.

    Args:
        limit: only the first so many rows; 0 = all.
    """

    path: Path
    limits: Limits
    limit: int = 0

    def __iter__(self) -> Iterator[Sample | Rejection]:
        """Every row in order, as a :class:`Sample` or a :class:`Rejection`.

        Raises:
            DatasetError: the file can't be read to its end.
        """
        seen: dict[str, int] = {}
        for index, row in read_rows(self.path):
            if self.limit and index >= self.limit:
                return
            result = row if isinstance(row, Rejection) else check_row(index, row, self.limits)
            if isinstance(result, Sample):
                result = _check_duplicate(result, seen)
            yield result

    def survey(self) -> Survey:
        """Check every row; keeps a :class:`RowInfo` of each in memory, and no ids."""
        rows: list[RowInfo] = []
        rejections: list[Rejection] = []
        zero = missing = 0
        digest = xxhash.xxh3_128()
        for row in self:
            if isinstance(row, Rejection):
                rejections.append(row)
                continue
            digest.update(row.digest.encode())
            zero += not row.loss_mask.any()
            missing += not row.has_mask
            rows.append(RowInfo(row.index, row.id, row.num_tokens, row.digest, row.mask_digest))
        total = len(rows) + len(rejections)
        if total == 0:
            raise DatasetError("the dataset has no rows", path=str(self.path), fix="check the path")
        end = self.limit or sys.maxsize
        return Survey(rows, rejections, total, zero, missing, digest.hexdigest(), end)


def check_row(index: int, row: dict[str, Any], limits: Limits) -> Sample | Rejection:
    """A parsed row as a sample, or the reason why it can't be one. Pure."""
    has_id = row.get("id") is not None
    row_id = str(row["id"]) if has_id else str(index)

    def reject(reason: str, detail: str, fix: str) -> Rejection:
        return Rejection(index, row_id, reason, detail, fix)

    if "input_ids" not in row or row["input_ids"] is None:
        keys = ", ".join(list(row)[:8])
        return reject("no_ids", f"the row has only: {keys}", "tokenize it into input_ids")
    ids = row["input_ids"]
    if not isinstance(ids, list) or set(map(type, ids)) - {int}:
        return reject(
            "not_integers", f"input_ids is {_show(ids)}", "write one flat list of integers"
        )
    if not ids:
        return reject("empty", "input_ids is []", "drop the row")
    lowest, highest = min(ids), max(ids)
    if lowest < 0 or highest >= limits.vocab_size or highest > _INT32_MAX:
        wrong = lowest if lowest < 0 else highest
        return reject(
            "out_of_vocabulary",
            f"id {wrong} at position {ids.index(wrong)}, the vocabulary is "
            f"0..{limits.vocab_size - 1}",
            "tokenize with the served model's tokenizer; one such id would kill the server",
        )
    if len(ids) > limits.max_tokens:
        return reject(
            "too_long",
            f"{len(ids)} tokens, the limit is {limits.max_tokens}",
            "raise context_length or max_tokens, or split the row; rows are never cut",
        )
    mask = row.get("loss_mask")
    if mask is None:
        ones = np.ones(len(ids), np.uint8)
        return Sample(index, row_id, np.asarray(ids, "<i4"), ones, False, has_id)
    problem = _mask_problem(mask, len(ids))
    if problem:
        return reject(*problem)
    return Sample(index, row_id, np.asarray(ids, "<i4"), np.asarray(mask, np.uint8), has_id=has_id)


def _mask_problem(mask: Any, num_tokens: int) -> tuple[str, str, str] | None:
    if not isinstance(mask, list) or set(map(type, mask)) - {int, bool} or set(mask) - {0, 1}:
        return "mask_values", f"loss_mask is {_show(mask)}", "write one flat list of 0 and 1"
    if len(mask) != num_tokens:
        return (
            "mask_length",
            f"loss_mask has {len(mask)} entries, input_ids {num_tokens}",
            "make one mask entry per id",
        )
    return None


def _check_duplicate(sample: Sample, seen: dict[str, int]) -> Sample | Rejection:
    if not sample.has_id:
        return sample
    first = seen.setdefault(sample.id, sample.index)
    if first == sample.index:
        return sample
    return Rejection(
        sample.index,
        sample.id,
        "duplicate_id",
        f"row {first} has the id {sample.id!r} too",
        "give every row its own id, or none",
    )


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_rows(
    path: str | Path, columns: Sequence[str] | None = ("id", "input_ids", "loss_mask")
) -> Iterator[tuple[int, dict[str, Any] | Rejection]]:
    """(index, parsed row or rejection) for each row of a JSONL or Parquet file.

    Args:
        columns: what is read of a Parquet file; None = all.

    Raises:
        DatasetError: the file is missing or empty, is a Git LFS pointer or an HTML page, or breaks
            off (after which row).
    """
    path = Path(path)
    kind = sniff(path)
    if kind == "parquet":
        yield from _parquet_rows(path, columns)
        return
    index = -1
    try:
        for index, line in enumerate(_lines(path, kind)):
            yield index, _parse_line(index, line)
    except (EOFError, OSError, zlib.error, zstandard.ZstdError) as error:
        raise DatasetError(
            f"the file breaks off after row {index}: {error}",
            path=str(path),
            fix="fetch or write it again; nothing was sent",
        ) from error


def sniff(path: Path) -> str:
    """``"plain"``, ``"gzip"``, ``"zstd"`` or ``"parquet"``, by the file's first bytes."""
    try:
        with path.open("rb") as handle:
            head = handle.read(64)
    except OSError as error:
        raise DatasetError(
            f"the dataset can't be read: {error.strerror}",
            path=str(path),
            fix="give a JSONL (.gz, .zst) or Parquet file",
        ) from error
    if not head:
        raise DatasetError("the dataset is an empty file", path=str(path), fix="fetch it again")
    if head.startswith(b"version https://git-lfs"):
        raise DatasetError(
            "the dataset is a Git LFS pointer", path=str(path), fix="run git lfs pull there"
        )
    if head.lstrip()[:9].lower().startswith((b"<!doctype", b"<html")):
        raise DatasetError(
            "the dataset is an HTML page, probably an error page of a download",
            path=str(path),
            fix="fetch it again and check the address",
        )
    for magic, kind in ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"PAR1", "parquet")):
        if head.startswith(magic):
            return kind
    return "plain"


def _lines(path: Path, kind: str) -> Iterator[bytes]:
    if kind == "zstd":
        yield from _zstd_lines(path)
        return
    with gzip.open(path, "rb") if kind == "gzip" else path.open("rb") as file:
        yield from file


def _zstd_lines(path: Path) -> Iterator[bytes]:
    """Lines of any number of frames.

    Raises:
        EOFError: the last frame is cut off; the library's own reader would not notice.
    """
    frame, rest = zstandard.ZstdDecompressor().decompressobj(), b""
    with path.open("rb") as file:
        data = file.read(1 << 20)
        while data:
            *lines, rest = (rest + frame.decompress(data)).split(b"\n")
            yield from (line + b"\n" for line in lines)
            data = frame.unused_data or file.read(1 << 20)
            if frame.eof and data:
                frame = zstandard.ZstdDecompressor().decompressobj()
    if not frame.eof:
        raise EOFError("the last zstd frame is not whole")
    if rest:
        yield rest


def _parse_line(index: int, line: bytes) -> dict[str, Any] | Rejection:
    def reject(reason: str, detail: str, fix: str = "write one JSON object per line") -> Rejection:
        return Rejection(index, str(index), reason, detail, fix)

    if index == 0:
        line = line.removeprefix(b"\xef\xbb\xbf")
    text = line.strip()
    if not text:
        return reject("blank", "the line is blank", "remove the line")
    try:
        row = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        torn = "" if line.endswith(b"\n") else "; the last line has no end, it may be torn off"
        return reject("not_json", f"{error}{torn}")
    return row if isinstance(row, dict) else reject("not_json", f"a {type(row).__name__}")


def _parquet_rows(
    path: Path, columns: Sequence[str] | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow
    import pyarrow.parquet

    index = 0
    try:
        file = pyarrow.parquet.ParquetFile(path)
        names = file.schema_arrow.names
        wanted = names if columns is None else [name for name in names if name in columns]
        for batch in file.iter_batches(batch_size=256, columns=wanted):
            for row in batch.to_pylist():
                yield index, row
                index += 1
    except (pyarrow.ArrowException, OSError) as error:
        raise DatasetError(
            f"not a whole Parquet file, it breaks off before row {index}: {error}",
            path=str(path),
            fix="fetch or write it again; nothing was sent",
        ) from error
