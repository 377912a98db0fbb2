"""Reads what a log, a journal, a store or a dump directory says of each sample.

What it means is decided in the other modules.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import orjson
import xxhash

from hslib.errors import StoreError
from hslib.files import TensorFileError, open_tensors
from hslib.server import DumpDir
from hslib.store import Entry, combine, open_storage, read_journal, read_store_url

UNKNOWN = -1
_MAX_SPAN = 5_000_000  # positions between the first and the last sample of a log

# "sample 84: got 4710 tokens, expected 291, truncating"; the character after a number shows that
# the number is not cut off
_WARNING = re.compile(
    r"sample (?P<index>\d+): got (?P<got>\d+) tokens?\b"
    r"(?:, expected (?P<expected>\d+)(?=[,\s]|\Z))?"
)
_KIT = re.compile(
    r"index=(?P<index>\d+), check='(?:rows|num_tokens)', "
    r"expected=(?P<expected>\d+), got=(?P<got>\d+)"
)
_PROGRESS = re.compile(r"^\[(?P<index>\d+)\] \d+ extracted\b", re.MULTILINE)
_REQUEST = re.compile(r"hs-(\d+)-\d+-[0-9a-f]{16}-\d+\Z")


@dataclass(frozen=True, eq=False)
class Observations:
    """One position per sample, ascending by index without gaps; :data:`UNKNOWN` where not known.

    ``indices, expected, got`` int64 [N]: sample, tokens, tokens. ``expected_ids, got_ids`` int64
    [N] or None: numbers that are equal for equal ids; they prove what lengths only suggest.
    ``stated`` bool [N]: ``got`` was read, not concluded. ``only_mismatches``: a sample without a
    line had the right length. ``has_places``: it is known under which sample a dump was filed;
    False = only the order of dumps is known, from a server's own counter.
    """

    indices: np.ndarray
    expected: np.ndarray
    got: np.ndarray
    stated: np.ndarray
    source: str
    only_mismatches: bool = False
    has_places: bool = True
    expected_ids: np.ndarray | None = None
    got_ids: np.ndarray | None = None

    def __post_init__(self) -> None:
        assert len(self.indices) == len(self.expected) == len(self.got) == len(self.stated)

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def compared(self) -> np.ndarray:
        """bool [N]: both lengths are known."""
        return np.asarray((self.expected > 0) & (self.got > 0))

    @property
    def silent(self) -> np.ndarray:
        """bool [N]: a log of mismatches says nothing of it, so got and expected are equal."""
        found = np.zeros(len(self), bool)
        stated = np.flatnonzero(self.stated)
        if self.only_mismatches and len(stated):
            found[stated[0] : stated[-1]] = True
        return found & (self.got < 0)

    @property
    def mismatched(self) -> np.ndarray:
        """bool [N]: another dump than this sample's, by ids where known, else by length."""
        differs = self.compared & (self.expected != self.got)
        if self.expected_ids is not None and self.got_ids is not None:
            known = (self.expected_ids >= 0) & (self.got_ids >= 0)
            differs = np.where(known, self.expected_ids != self.got_ids, differs)
        return np.asarray(differs)

    def with_rows(self, lengths: np.ndarray, digests: list[str] | None = None) -> "Observations":
        """Add what the dataset says of every row (``lengths`` int64 [rows]).

        A log of mismatches has no line for a sample that fits: between the log's first and last
        sample, those got what the dataset expects.
        """
        size = max(int(self.indices.max(initial=-1)) + 1, len(lengths))
        got, expected = np.full(size, UNKNOWN), np.full(size, UNKNOWN)
        stated = np.zeros(size, bool)
        expected[: len(lengths)] = lengths
        got[self.indices], stated[self.indices] = self.got, self.stated
        expected[self.indices] = np.where(self.expected > 0, self.expected, expected[self.indices])
        if self.only_mismatches and len(self.indices):
            silent = np.zeros(size, bool)
            silent[self.indices[0] : self.indices[-1]] = True
            silent &= got < 0
            got[silent] = expected[silent]
        wider = replace(
            self, indices=np.arange(size), expected=expected, got=got, stated=stated, got_ids=None
        )
        if digests is None or self.got_ids is None:
            return wider
        return wider._with_ids(digests, self)

    def _with_ids(self, digests: list[str], before: "Observations") -> "Observations":
        """Number the dataset's digests as ``before`` numbered those that it got."""
        assert before.got_ids is not None
        expected_ids = np.full(len(self), UNKNOWN)
        got_ids = np.full(len(self), UNKNOWN)
        codes = [code_of(digest) for digest in digests]
        expected_ids[: len(codes)] = codes
        got_ids[before.indices] = before.got_ids
        return replace(self, expected_ids=expected_ids, got_ids=got_ids)


def code_of(digest: str) -> int:
    """A digest (hex) as a number below 2**62; two rows practically never share one."""
    return int(digest[:16], 16) >> 2


def observe(indices: Iterable[int], expected: Iterable[int], got: Iterable[int], source: str,
            only_mismatches: bool = False) -> Observations:  # fmt: skip
    """Put records on positions without gaps; the last record of a sample counts."""
    columns = [np.array(list(values), np.int64) for values in (indices, expected, got)]
    order = columns[0]
    if not len(order):
        empty = np.zeros(0, np.int64)
        return Observations(empty, empty, empty, np.zeros(0, bool), source, only_mismatches)
    low, high = int(order.min()), int(order.max())
    if high - low > _MAX_SPAN:
        raise StoreError(
            f"the log's sample numbers spread over {high - low + 1}",
            path=source,
            fix="is it the log of one job? Cut out that part",
        )
    size = high - low + 1
    full = [np.full(size, UNKNOWN), np.full(size, UNKNOWN)]
    for column, values in zip(full, columns[1:], strict=True):
        column[order - low] = values  # numpy keeps the last of repeated positions
    stated = full[1] > 0
    wanted, came = full
    return Observations(np.arange(low, high + 1), wanted, came, stated, source, only_mismatches)


def read_log(text: str, source: str = "log") -> Observations:
    """Reads warnings as the case study's job wrote them and failures as this kit writes them.

    A number that the end of the text may have cut off is ignored.
    """
    if text and not text.endswith("\n"):
        text = re.sub(r"\d+\Z", "", text)
    found = [(m.start(), m) for pattern in (_WARNING, _KIT) for m in pattern.finditer(text)]
    records = [m for _, m in sorted(found, key=lambda item: item[0])]
    indices = [int(m["index"]) for m in records]
    expected = [int(m["expected"] or UNKNOWN) for m in records]
    got = [int(m["got"]) for m in records]
    if records:  # progress lines say how far the log reaches; they have no lengths
        seen = [int(m["index"]) for m in _PROGRESS.finditer(text)]
        for index in {min(seen, default=indices[0]), max(seen, default=indices[0])} - set(indices):
            indices, expected, got = [index, *indices], [UNKNOWN, *expected], [UNKNOWN, *got]
    equal = any(e == g > 0 for e, g in zip(expected, got, strict=True))
    return observe(indices, expected, got, source, only_mismatches=not equal)


def read_entries(entries: Iterable[Entry], source: str) -> Observations:
    """A journal: stored samples passed the check of their ids; failures may name lengths."""
    state = combine(entries)
    rows = [(e.index, e.num_tokens, e.num_tokens) for e in state.stored.values()]
    for entry in state.failed.values():
        match = _KIT.search(entry.reason)
        got = int(match["got"]) if match else UNKNOWN
        rows.append((entry.index, entry.num_tokens, got))
    rows.sort()
    columns = [[row[column] for row in rows] for column in range(3)]
    found = observe(columns[0], columns[1], columns[2], source)
    digests = {e.index: e.digest for e in state.stored.values() if e.digest}
    return replace(found, got_ids=_numbered(found.indices, digests.get))


def read_dumps(root: Path) -> Observations:
    """A dump directory in the order of its names' numbers; ids where the dumps hold them.

    Dumps named by this kit say which sample they are for; a server's counter does not.
    """
    dumps = DumpDir(root)
    names = [name for name in dumps.names() if dumps.is_complete(name)]
    kit = all(_REQUEST.match(name) for name in names)
    numbers = {name: _number(name, at) for at, name in enumerate(names)}
    names.sort(key=lambda name: numbers[name])
    indices = [numbers[name] if kit else at for at, name in enumerate(names)]
    got = [_dump_length(root / name) for name in names]
    digests = {index: _dump_digest(root / n) for index, n in zip(indices, names, strict=True)}
    found = observe(indices, [UNKNOWN] * len(got), got, str(root))
    has_ids = any(digests.values())
    ids = _numbered(found.indices, digests.get) if has_ids else None
    return replace(found, has_places=kit, got_ids=ids)


def _numbered(indices: np.ndarray, digest: Callable[[int], str | None]) -> np.ndarray:
    found = [digest(int(index)) for index in indices]
    return np.array([code_of(text) if text else UNKNOWN for text in found], np.int64)


def _number(name: str, fallback: int) -> int:
    match = _REQUEST.match(name) or re.search(r"(\d+)\D*\Z", name)
    return int(match[1]) if match else fallback


def _dump_length(path: Path) -> int:
    try:
        return int(orjson.loads((path / "meta.json").read_bytes())["num_tokens"])
    except (OSError, ValueError, KeyError, TypeError):
        return UNKNOWN


def _dump_digest(path: Path) -> str | None:
    try:
        ids = open_tensors(path / "hidden_states.safetensors").arrays["input_ids"]
    except (TensorFileError, OSError, KeyError):
        return None
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(ids, "<i4").data)


def read_any(path: str | Path) -> Observations:
    """Read a store, a run's folder, a dump directory, a journal or a log.

    Raises:
        StoreError: none of these.
    """
    path = read_store_url(path)
    if isinstance(path, str):
        return read_entries(open_storage(path).entries(), path)
    if path.is_file():
        if path.suffix == ".jsonl":
            return read_entries(read_journal(path), path.name)
        return read_log(path.read_text(encoding="utf-8", errors="replace"), path.name)
    for folder in (path, path / "store"):
        journals = sorted(folder.glob("journal*.jsonl"))
        if journals:
            entries = (entry for journal in journals for entry in read_journal(journal))
            return read_entries(entries, path.name)
    if path.is_dir() and DumpDir(path).names():
        return read_dumps(path)
    if (path / "extraction.log").is_file():
        return read_any(path / "extraction.log")
    if not path.exists():
        raise StoreError("the log or store is missing", path=str(path), fix="check the path")
    raise StoreError(
        "this is no log, journal, store or dump directory",
        path=str(path),
        fix="name the log file, the store's or the dumps' folder",
    )
