"""The rows of one file, parsed and unchecked: JSON lines, Parquet, or Arrow as ``datasets`` has it.

JSON lines are split on ``\\n`` only: a U+2028 inside a string or a CRLF shifts no row.
"""

import gzip
import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import zstandard

from hslib.dataset.sample import RowFault
from hslib.errors import DatasetError

_BATCH = 256  # rows of a table in memory at once
_MAGIC = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"PAR1", "parquet"),
    (b"ARROW1", "arrow file"),
    (b"\xff\xff\xff\xff", "arrow stream"),
)
_TABLES = ("parquet", "arrow file", "arrow stream")


def read_file(
    path: Path, columns: Sequence[str] | None, first: int = 0
) -> Iterator[dict[str, Any] | RowFault]:
    """Each row, or why it is none.

    In a table's structs, fields that are null are left out: Arrow gives every row the fields of all
    of them, and can't tell a null from a field that was not there.

    Args:
        columns: what is read of a table; None = all.
        first: the index of the file's first row, for errors.

    Raises:
        DatasetError: the file is missing or empty, is a Git LFS pointer or an HTML page, or breaks
            off (after which row).
    """
    import pyarrow

    kind = sniff(path)
    is_lines = kind not in _TABLES
    rows = map(_parse_line, _lines(path, kind)) if is_lines else _table_rows(path, kind, columns)
    count = 0
    try:
        for row in rows:
            yield row
            count += 1
    except (EOFError, OSError, zlib.error, zstandard.ZstdError, pyarrow.ArrowException) as error:
        raise DatasetError(
            f"the file is not whole: it breaks off after {count} rows, before row {first + count} "
            f"of the dataset: {error}",
            path=str(path),
            fix="fetch or write it again; nothing was sent",
        ) from error


def is_table(path: Path) -> bool:
    """Whether the file has rows, and not lines."""
    return sniff(path) in _TABLES


def sniff(path: Path) -> str:
    """What a file is by its first bytes: ``"plain"``, ``"gzip"``, ``"zstd"``, ``"parquet"``,
    ``"arrow file"`` or ``"arrow stream"``.

    Raises:
        DatasetError: it can't be read, or is no data.
    """
    try:
        with path.open("rb") as handle:
            head = handle.read(64)
    except OSError as error:
        raise DatasetError(
            f"the dataset can't be read: {error.strerror}",
            path=str(path),
            fix="give a JSONL (.gz, .zst) or Parquet file, or a folder of them",
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
    return next((kind for magic, kind in _MAGIC if head.startswith(magic)), "plain")


def _lines(path: Path, kind: str) -> Iterator[bytes]:
    if kind == "zstd":
        yield from _zstd_lines(path)
        return
    with gzip.open(path, "rb") if kind == "gzip" else path.open("rb") as file:
        yield from file


def _zstd_lines(path: Path) -> Iterator[bytes]:
    """Lines of any number of frames, with windows of any size.

    Raises:
        EOFError: the last frame is cut off; the library's own reader would not notice.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=2**31)  # zstd --long=31
    frame, rest = decompressor.decompressobj(), b""
    with path.open("rb") as file:
        data = file.read(1 << 20)
        while data:
            *lines, rest = (rest + frame.decompress(data)).split(b"\n")
            yield from (line + b"\n" for line in lines)
            data = frame.unused_data or file.read(1 << 20)
            if frame.eof and data:
                frame = decompressor.decompressobj()
    if not frame.eof:
        raise EOFError("the last zstd frame is not whole")
    if rest:
        yield rest


def _parse_line(line: bytes) -> dict[str, Any] | RowFault:
    text = line.strip()
    if not text:
        return RowFault("blank", "the line is blank", "remove the line")
    array = ": jq -c '.[]' makes them of an array" if text.startswith(b"[") else ""
    fix = f"write one JSON object per line{array}"
    try:
        row = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        row = _lenient(text)
        if row is None:
            torn = "" if line.endswith(b"\n") else "; the last line has no end, it may be torn off"
            return RowFault("not_json", f"{error}{torn}", fix)
    return row if isinstance(row, dict) else RowFault("not_json", f"a {type(row).__name__}", fix)


def _lenient(text: bytes) -> Any:
    """JSON with what Python writes and JSON lacks: NaN, Infinity, half a surrogate pair, a BOM.
    None if not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _table_rows(path: Path, kind: str, columns: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    for batch in _batches(path, kind, columns):
        names = batch.schema.names
        for start in range(0, batch.num_rows, _BATCH):
            part = batch.slice(start, _BATCH)
            columns_values = [_column_values(column) for column in part.columns]
            none = itertools.repeat((), part.num_rows)  # of a table without any wanted column
            for values in zip(*columns_values, strict=True) if names else none:
                found = zip(names, values, strict=True)
                yield {name: value for name, value in found if value is not None}


def _column_values(column: Any) -> list[Any]:
    """A column's values as they went in; ids and masks without an object of pyarrow's for each."""
    from pyarrow import types

    kind = column.type
    if (types.is_list(kind) or types.is_large_list(kind)) and types.is_integer(kind.value_type):
        ends = column.offsets.to_numpy()
        inner = column.values.slice(ends[0], ends[-1] - ends[0])
        if not inner.null_count:
            flat, ends = inner.to_numpy().tolist(), (ends - ends[0]).tolist()
            lists = [flat[a:b] for a, b in itertools.pairwise(ends)]
            known = column.is_valid().to_pylist() if column.null_count else ()
            return [v if k else None for v, k in zip(lists, known, strict=True)] if known else lists
    values = column.to_pylist(maps_as_pydicts="lossy")
    clean = _cleaner(kind)
    return [v if v is None else clean(v) for v in values] if clean else values


def _batches(path: Path, kind: str, columns: Sequence[str] | None) -> Iterator[Any]:
    """Record batches, read and not mapped: what was read does not count as memory."""
    import pyarrow
    import pyarrow.parquet

    if kind == "parquet":
        table = pyarrow.parquet.ParquetFile(path)
        wanted = _chosen(table.schema_arrow.names, columns)
        yield from table.iter_batches(batch_size=_BATCH, columns=wanted)
        return
    with pyarrow.OSFile(str(path)) as file:
        if kind == "arrow stream":
            for batch in pyarrow.ipc.open_stream(file):
                yield batch.select(_chosen(batch.schema.names, columns))
            return
        table = pyarrow.ipc.open_file(file)
        for number in range(table.num_record_batches):
            batch = table.get_batch(number)
            yield batch.select(_chosen(batch.schema.names, columns))


def _chosen(names: list[str], columns: Sequence[str] | None) -> list[str]:
    return names if columns is None else [name for name in names if name in columns]


def _without_nulls(fields: Any) -> Callable[[Any], Any]:
    """Leaves null fields out of a struct's value, and of those in it; ``fields``: its type."""
    inner = {field.name: part for field in fields if (part := _cleaner(field.type))}

    def clean(struct: Any) -> Any:
        return {
            name: inner[name](value) if name in inner else value
            for name, value in struct.items()
            if value is not None
        }

    return clean


def _cleaner(kind: Any) -> Callable[[Any], Any] | None:
    """What makes a value as it went in of one that is not null; None where it is that already."""
    from pyarrow import JsonType, types

    if isinstance(kind, JsonType):  # the Json columns of datasets
        return json.loads  # NaN and its like too
    if types.is_struct(kind):
        return _without_nulls(kind)
    if types.is_map(kind):
        return _each(_cleaner(kind.item_type), is_map=True)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _each(_cleaner(kind.value_type), is_map=False)
    return None


def _each(clean: Callable[[Any], Any] | None, is_map: bool) -> Callable[[Any], Any] | None:
    if clean is None:
        return None
    if is_map:
        return lambda values: {k: v if v is None else clean(v) for k, v in values.items()}
    return lambda values: [v if v is None else clean(v) for v in values]
