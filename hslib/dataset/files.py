"""The rows of a JSONL or Parquet file, parsed and unchecked."""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import zstandard

from hslib.dataset.sample import Rejection
from hslib.errors import DatasetError


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
