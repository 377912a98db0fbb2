"""The same rows in every form that a dataset can have."""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet

Rows = Sequence[dict[str, Any]]


def write_lines(path: Path, rows: Rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def one_file(folder: Path, rows: Rows) -> str:
    return str(write_lines(folder / "rows.jsonl", rows))


def shards(folder: Path, rows: Rows) -> str:
    """With what stands beside rows, some of them in a folder, one compressed."""
    write_lines(folder / "a.jsonl", rows[:3])
    write_lines(folder / "b" / "1.jsonl.gz", rows[3:5])
    write_lines(folder / "b.jsonl", rows[5:])
    for name in ("_SUCCESS", ".c.jsonl", "README.md", "x.lock", "x.tmp", "dataset_info.json"):
        (folder / name).write_text("nothing")
    write_lines(folder / ".cache" / "x.jsonl", rows)
    write_lines(folder / "a.jsonl.rejected.jsonl", rows)
    return str(folder)


def parquet_shards(folder: Path, rows: Rows) -> str:
    for number, part in enumerate((rows[:4], rows[4:])):
        path = folder / f"train-0000{number}-of-00002.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(part)), path)
    return str(folder)


def a_glob(folder: Path, rows: Rows) -> str:
    write_lines(folder / "part-1.jsonl", rows[:3])
    write_lines(folder / "part-2.jsonl", rows[3:])
    write_lines(folder / "other.jsonl", rows)
    return str(folder / "part-*.jsonl")


def saved(folder: Path, rows: Rows) -> str:
    made = datasets.Dataset.from_list(list(rows)).with_format("torch")  # as speculators prepares
    made.save_to_disk(folder / "train", num_shards=3)
    (folder / "train" / "hidden_states").mkdir()
    (folder / "train" / "hidden_states" / "hs_0.safetensors").write_bytes(b"x")
    return str(folder / "train")


# but one file; each writes six rows or more into a folder, and returns what names the dataset
FORMS: tuple[Callable[[Path, Rows], str], ...] = (shards, parquet_shards, a_glob, saved)
