"""One file's rows, whatever its format and its name."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from hslib.dataset import Rejection, read_rows
from hslib.errors import DatasetError

TEXT = b'{"input_ids": [1]}\n{"input_ids": [2]}\n'
LINES = TEXT.splitlines(keepends=True)


def rows_of(path: Path) -> list[Any]:
    return [row for _, row in read_rows(path, columns=None)]


def ids_of(path: Path) -> list[list[int]]:
    return [row["input_ids"] for row in rows_of(path)]


def table() -> Any:
    return pyarrow.table({"input_ids": [[1], [2]], "loss_mask": [[1], [0]], "other": ["x", "y"]})


def write_parquet(path: Path) -> None:
    pyarrow.parquet.write_table(table(), path)


def write_arrow_stream(path: Path) -> None:
    with pyarrow.ipc.new_stream(path, table().schema) as writer:
        writer.write_table(table())


def write_arrow_file(path: Path) -> None:
    with pyarrow.ipc.new_file(path, table().schema) as writer:
        writer.write_table(table())


def long_window(text: bytes) -> bytes:
    """As ``zstd --long=31`` writes it when the size is not known: the window is 2 GiB."""
    parameters = zstandard.ZstdCompressionParameters.from_level(
        1, window_log=31, enable_ldm=1, hash_log=10, chain_log=10, ldm_hash_log=10
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(text) + compressor.flush()


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("plain.jsonl", lambda p: p.write_bytes(TEXT)),
        ("rows.jsonl.gz", lambda p: p.write_bytes(gzip.compress(TEXT, mtime=0))),
        ("rows.jsonl.zst", lambda p: p.write_bytes(zstandard.compress(TEXT))),
        ("two-frames.zst", lambda p: p.write_bytes(b"".join(map(zstandard.compress, LINES)))),
        ("long-window.zst", lambda p: p.write_bytes(long_window(TEXT))),
        ("wrong-suffix.jsonl", lambda p: p.write_bytes(gzip.compress(TEXT, mtime=0))),
        ("rows.parquet", write_parquet),
        ("rows.arrow", write_arrow_stream),
        ("rows.feather", write_arrow_file),
    ],
)
def test_formats_are_told_by_content(tmp_path: Path, name: str, write: Any) -> None:
    write(tmp_path / name)
    assert ids_of(tmp_path / name) == [[1], [2]]


@pytest.mark.parametrize("write", [write_parquet, write_arrow_stream, write_arrow_file])
def test_only_the_columns_asked_for_are_read_of_a_table(tmp_path: Path, write: Any) -> None:
    write(tmp_path / "rows")
    assert [set(row) for _, row in read_rows(tmp_path / "rows", columns=("other", "id"))] == [
        {"other"},
        {"other"},
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>404</html>", "HTML page"),
        (b"\n  <html>", "HTML page"),
        (gzip.compress(TEXT * 50, mtime=0)[:-12], r"breaks off after \d+ rows, before row \d+ of"),
        (zstandard.compress(TEXT * 5000)[:-4], "breaks off after"),
        (b"\x28\xb5\x2f\xfd and no frame", "breaks off after 0 rows"),
        (b"PAR1 and nothing more", "is not whole"),
        (b"ARROW1 and nothing more", "is not whole"),
        (b"\xff\xff\xff\xff and nothing more", "is not whole"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_an_error(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=message) as caught:
        rows_of(path)
    assert "rows.jsonl" in str(caught.value)


def test_zstd_lines_are_split_on_line_feeds_only(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.zst"
    rows = [b'{"input_ids": [1], "t": "a\\rb"}\r\n', b'{"input_ids": [2]}\n', b'{"input_ids": [3]}']
    path.write_bytes(b"".join(map(zstandard.compress, rows)))
    assert ids_of(path) == [[1], [2], [3]]


def test_what_python_writes_and_json_lacks_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    odd = [{"t": "\ud83d hi"}, {"score": math.inf}, {"score": math.nan, "input_ids": [5]}]
    path.write_text("\n".join(map(json.dumps, odd)))
    half, infinite, nothing = rows_of(path)
    assert half["t"] == "\ud83d hi"
    assert infinite["score"] == math.inf
    assert math.isnan(nothing["score"]) and nothing["input_ids"] == [5]


@pytest.mark.parametrize(
    ("line", "evidence"),
    [
        (b'{"input_ids": [1, 2', "may be torn off"),
        (b'{"input_ids": NaNN}\n', "column"),
        (b"[1, 2]\n", "a list"),
        (b'{"t": "\xff"}\n', "UTF-8"),
        (b'{"t": ' + b"[" * 100_000 + b"\n", "depth"),
    ],
)
def test_a_line_that_is_no_object_is_rejected(tmp_path: Path, line: bytes, evidence: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(LINES[0] + line)
    _, found = rows_of(path)
    assert isinstance(found, Rejection)
    assert (found.index, found.reason, found.where) == (1, "not_json", "rows.jsonl, line 2")
    assert evidence in found.detail


def test_an_array_in_a_file_says_how_it_becomes_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"input_ids": [1]}], indent=1))
    assert "jq -c" in rows_of(path)[0].fix
    path.write_text(json.dumps([{"input_ids": [1]}]))
    assert "jq -c" in rows_of(path)[0].fix


CHATS: list[dict[str, Any]] = [
    {
        "messages": [
            {"role": "user", "content": "3 x 7"},
            {"role": "assistant", "tool_calls": [{"name": "mul", "arguments": {"a": 3, "b": 7}}]},
        ],
        "tools": [{"name": "mul"}],
    },
    {
        "messages": [
            {"role": "user", "content": ""},
            {"role": "assistant", "tool_calls": [{"name": "add", "arguments": {"c": [0, None]}}]},
        ],
    },
    {"messages": [], "input_ids": [1]},
]


def test_structs_come_out_of_a_table_without_the_nulls_that_fill_them(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    names = ("messages", "tools", "input_ids")
    columns = {name: [chat.get(name) for chat in CHATS] for name in names}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    filled = pyarrow.parquet.read_table(path)["messages"][0].as_py()
    assert filled[0] == {"role": "user", "content": "3 x 7", "tool_calls": None}
    assert rows_of(path) == CHATS


def test_maps_become_dicts_and_keep_their_nulls(tmp_path: Path) -> None:
    struct = pyarrow.struct({"a": pyarrow.int64(), "b": pyarrow.int64()})
    kinds = {"m": pyarrow.map_(pyarrow.string(), pyarrow.int64())}
    kinds["s"] = pyarrow.map_(pyarrow.string(), struct)
    rows = {"m": [[("x", 1), ("y", None)]], "s": [[("x", {"a": 1}), ("y", None)]]}
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table(rows, pyarrow.schema(kinds)), path)
    assert rows_of(path) == [{"m": {"x": 1, "y": None}, "s": {"x": {"a": 1}, "y": None}}]


def test_lists_of_integers_come_out_as_pyarrow_has_them(tmp_path: Path) -> None:
    """They take a way of their own: many rows, empty lists, null lists, nulls in lists, slices."""
    rows = [None if n % 7 == 0 else list(range(n % 5)) for n in range(600)]
    inside = [[1, None] if n == 300 else [n] for n in range(600)]
    table = pyarrow.table(
        {"a": rows, "b": inside, "c": pyarrow.array(rows, pyarrow.large_list(pyarrow.uint8()))}
    )
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(table, path)
    found = rows_of(path)
    for name in "abc":
        assert [row.get(name) for row in found] == table[name].to_pylist()
    assert type(found[1]["a"]) is list and type(found[1]["a"][0]) is int


def test_a_table_without_the_columns_asked_for_has_as_many_rows(tmp_path: Path) -> None:
    write_parquet(tmp_path / "rows.parquet")
    assert [row for _, row in read_rows(tmp_path / "rows.parquet", ("id",))] == [{}, {}]
