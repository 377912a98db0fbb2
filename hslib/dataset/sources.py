"""Where rows come from: a file, a folder or glob of files, a ``datasets`` folder, or the hub.

A source is its files in order. The files of a folder or glob are sorted by their paths, part by
part, as text (``part-10`` comes before ``part-2``); a row's index is its number over all of them.
"""

import glob
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hslib.dataset.files import is_table, read_file, sniff
from hslib.dataset.hub import local_snapshot, read_hub_source, split_files
from hslib.dataset.sample import Rejection, RowFault
from hslib.dataset.source_name import HUB, absolute_source
from hslib.errors import DatasetError

_FIX = "give a JSONL (.gz, .zst) or Parquet file, a folder or glob of such, a datasets folder, or "
_FIX += "hf:NAME"
# what stands beside rows; the last two are written by hslib.rows
_NO_DATA = (".lock", ".tmp", ".crc", ".md", ".manifest.json", ".rejected.jsonl")
_NOTES = {"dataset_info.json", "dataset_infos.json", "manifest.json"}
_JSON = {".jsonl", ".ndjson", ".jsonlines"}
_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d+)-of-(?P<count>\d+)(?P<suffix>\..*)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row stands: its index, and its file and number there, both from 0."""

    index: int
    file: Path
    number: int
    in_table: bool

    def __str__(self) -> str:
        place = f"row {self.number}" if self.in_table else f"line {self.number + 1}"
        return f"{self.file.name}, {place}"


def read_rows(
    source: str | Path, columns: Sequence[str] | None = ("id", "input_ids", "loss_mask")
) -> Iterator[tuple[int, dict[str, Any] | Rejection]]:
    """(index, parsed row or rejection) for each row of any source.

    Args:
        columns: what is read of Parquet and Arrow files; None = all.

    Raises:
        DatasetError: as :func:`find_files`, or a file breaks off.
    """
    for place, row in rows_of(find_files(source), columns):
        yield place.index, row


def rows_of(
    files: Sequence[Path], columns: Sequence[str] | None
) -> Iterator[tuple[Place, dict[str, Any] | Rejection]]:
    """Each row of these files with its place."""
    index = 0
    for file in files:
        in_table = is_table(file)
        for number, row in enumerate(read_file(file, columns, index)):
            place = Place(index, file, number, in_table)
            if isinstance(row, RowFault):
                yield place, Rejection(index, str(index), *row, str(place))
            else:
                yield place, row
            index += 1


def find_files(source: str | Path) -> tuple[Path, ...]:
    """The files of a source in the order of their rows; each is looked into.

    Raises:
        DatasetError: there is nothing, a file is not data, files are of several kinds or some are
            missing, or a split must be chosen.
    """
    text = absolute_source(source)
    path = Path(text)
    if text.startswith(HUB):
        hub_source = read_hub_source(text)
        snapshot = local_snapshot(hub_source.name)
        _require_all_shards(list(snapshot.rglob("*")))
        files = split_files(hub_source, snapshot)
    elif path.is_dir():
        files = _saved_files(path) or _folder_files(path)
    elif path.exists() or not glob.has_magic(text):
        files = [path]
        if "://" in text or not path.exists():
            raise DatasetError(f"there is no dataset at {text}", fix=_FIX)
    else:
        found = map(Path, glob.glob(text, recursive=True))  # noqa: PTH207 - it is absolute
        files = sorted((file for file in found if _is_data(file)), key=lambda file: file.parts)
        _require_one_kind(text, files)
    for file in files:
        sniff(file)
    return tuple(files)


def _folder_files(folder: Path) -> list[Path]:
    names = [file.relative_to(folder) for file in folder.rglob("*")]
    shown = [name for name in names if not any(part[0] in "._" for part in name.parts)]
    files = [folder / name for name in sorted(shown, key=lambda name: name.parts)]
    files = [file for file in files if _is_data(file)]
    _require_one_kind(str(folder), files)
    _require_all_shards(files)
    splits = {shard["stem"] for file in files if (shard := _SHARD.fullmatch(file.name))}
    if len(splits) > 1:
        raise DatasetError(
            f"{folder} holds several splits: {', '.join(sorted(splits))}",
            fix=f"name one by a glob, such as '{folder}/**/{min(splits)}-*'",
        )
    return files


def _is_data(file: Path) -> bool:
    is_note = file.name in _NOTES or file.stem.upper() in ("LICENSE", "README")
    is_note = is_note or file.name.endswith(_NO_DATA) or file.name[0] in "._"
    return file.is_file() and not is_note


def _kind(file: Path) -> str:
    name = file.name.lower()
    for suffix in (".gz", ".zst", ".zstd"):
        name = name.removesuffix(suffix)
    suffix = Path(name).suffix
    return "JSON lines" if suffix in _JSON else suffix


def _require_one_kind(where: str, files: Sequence[Path]) -> None:
    if not files:
        raise DatasetError(f"there is no dataset at {where}: no file of rows", fix=_FIX)
    if len({_kind(file) for file in files}) > 1:
        suffixes = Counter("".join(file.suffixes[-2:]) or "no suffix" for file in files)
        listed = ", ".join(f"{count} {suffix}" for suffix, count in suffixes.most_common(8))
        raise DatasetError(
            f"the files at {where} are of several kinds: {listed}",
            fix="name those that are meant by a glob, such as 'FOLDER/*.parquet'",
        )


def _require_all_shards(files: Sequence[Path]) -> None:
    """A download that was broken off leaves ``-of-00012`` in names, and fewer files."""
    found = [(file.parent, _SHARD.fullmatch(file.name)) for file in files]
    counts = Counter((p, m["stem"], m["count"], m["suffix"]) for p, m in found if m)
    for (parent, stem, count, suffix), here in counts.items():
        if here != int(count):
            raise DatasetError(
                f"{here} of {int(count)} files {stem}-*-of-{count}{suffix} are there",
                path=str(parent),
                fix="fetch the others; a glob takes some of them only",
            )


def _saved_files(folder: Path) -> list[Path]:
    """What ``datasets.save_to_disk`` wrote, in its order; empty for another folder."""
    if (folder / "dataset_dict.json").is_file():
        splits = json.loads((folder / "dataset_dict.json").read_text())["splits"]
        raise DatasetError(
            f"{folder} holds several splits: {', '.join(splits)}",
            fix=f"name one: {folder / splits[0]}",
        )
    state = folder / "state.json"
    if not state.is_file():
        return []
    files = [folder / file["filename"] for file in json.loads(state.read_text())["_data_files"]]
    if any(folder.glob("indices*.arrow")):
        raise DatasetError(f"{folder} has a table of indices", fix="save it again")
    return files
