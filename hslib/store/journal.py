"""The record of what happened to each sample; a line in it is the commit.

JSON lines, appended to one file per shard. Lines of several files have no common order and need
none: an ``ok`` line is live until a ``revoked`` line names its ``entry``. Objects can't be appended
to: see :mod:`hslib.store.bucket.journal`.
"""

import abc
import os
import threading
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from hslib.errors import StoreError
from hslib.files import explained, sync_directory

Status = Literal["ok", "failed", "rejected", "revoked"]


def _entry_id() -> str:
    return uuid.uuid4().hex[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One journal line.

    ``file`` is relative to the store. ``checksum``: xxh3-64 of the file's tensors. ``etag``: the
    object's ETag, empty in a directory. ``layers``: per state ``finite, absmax, mean_l2,
    zero_share, witness``. ``finished_at``: unix seconds.
    """

    index: int
    id: str
    status: Status
    num_tokens: int = 0
    digest: str = ""
    mask_digest: str = ""
    file: str = ""
    size_bytes: int = 0
    checksum: str = ""
    etag: str = ""
    attempts: int = 0
    latency_s: float = 0.0
    reason: str = ""
    layers: list[dict[str, Any]] = field(default_factory=list)
    finished_at: float = 0.0
    entry: str = field(default_factory=_entry_id)
    revokes: str = ""


_DECODER = msgspec.json.Decoder(Entry)  # a third of the time of orjson and Entry(**row)
_ENCODER = msgspec.json.Encoder()


def journal_name(shard_index: int, num_shards: int, part: str = "") -> str:
    """``journal.jsonl``, ``journal-00003-of-00008.jsonl`` for a shard, and
    ``journal-part-1f03a9-00017.jsonl`` for a part of either, as a cluster's tasks write them."""
    shard = f"-{shard_index:05d}-of-{num_shards:05d}" if num_shards > 1 else ""
    return f"journal{shard}-part-{part}.jsonl" if part else f"journal{shard}.jsonl"


def read_journal(path: Path) -> Iterator[Entry]:
    """All whole lines; a torn last line (a killed writer's) is left out.

    Raises:
        StoreError: a line inside the file that is not an entry, or the file can't be read.
        FileNotFoundError: it is not there.
    """
    with path.open("rb") as lines, explained(StoreError, "the journal can't be read", path):
        yield from decode_lines(lines, str(path))


def encode_line(entry: Entry) -> bytes:
    return _ENCODER.encode(entry) + b"\n"


def decode_lines(lines: Iterable[bytes], path: str) -> Iterator[Entry]:
    """Entries of journal lines, as :func:`read_journal` reads them."""
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            return
        try:
            yield _DECODER.decode(line)
        except msgspec.DecodeError as error:
            raise StoreError(
                f"line {number} of the journal is not an entry: {error}",
                path=path,
                fix="restore the file from a backup, or remove that line: "
                "its sample is then extracted again",
            ) from error


@dataclass(frozen=True)
class JournalState:
    """What all journals together say: at most one live entry per index."""

    stored: dict[int, Entry] = field(default_factory=dict)
    failed: dict[int, Entry] = field(default_factory=dict)
    rejected: dict[int, Entry] = field(default_factory=dict)


def combine(entries: Iterable[Entry]) -> JournalState:
    """Reduce the lines of any number of journals, in any order, to their state. Pure.

    A live ``ok`` beats a failure; of several live ones the latest counts.
    """
    lines = list(entries)
    revoked = {entry.revokes for entry in lines if entry.status == "revoked"}
    found: dict[str, dict[int, Entry]] = {"ok": {}, "failed": {}, "rejected": {}}
    for entry in lines:
        if entry.status == "revoked" or entry.entry in revoked:
            continue
        kept = found[entry.status].get(entry.index)
        if kept is None or kept.finished_at <= entry.finished_at:
            found[entry.status][entry.index] = entry
    stored = dict(sorted(found["ok"].items()))
    failed = {i: e for i, e in sorted(found["failed"].items()) if i not in stored}
    rejected = {i: e for i, e in sorted(found["rejected"].items()) if i not in stored}
    return JournalState(stored, failed, rejected)


class GroupCommit(abc.ABC):
    """Appends entries durably; concurrent callers share one commit."""

    def __init__(self) -> None:
        self._pending: list[tuple[bytes, str]] = []  # line, and the file that it commits
        self._written = self._durable = 0
        self._broken: BaseException | None = None  # set once, by the error that ended it
        self._lock, self._flushing = threading.Lock(), threading.Lock()

    def append(self, entry: Entry) -> None:
        """Return when the entry and its file are durable, the file first.

        Raises:
            StoreError, JobError: they may not be durable. Nothing more is written through this
                journal, and every later call raises: the next run reads which lines are there.
        """
        line = encode_line(entry)
        with self._lock:
            self._pending.append((line, entry.file))
            self._written += 1
            mine = self._written
        with self._flushing:
            if self._broken is not None:
                raise StoreError(
                    f"the journal is closed: {self._broken}", fix="run again to resume"
                ) from self._broken
            if self._durable < mine:
                try:
                    self._flush()
                except BaseException as error:
                    self._broken = error
                    raise

    def _flush(self) -> None:
        with self._lock:
            batch, self._pending = self._pending, []
            upto = self._written
        self._commit([line for line, _ in batch], {file for _, file in batch if file})
        self._durable = upto

    @abc.abstractmethod
    def _commit(self, lines: list[bytes], files: set[str]) -> None:
        """Make the files' names durable, then the lines."""

    def close(self) -> None:
        """Refuse all later calls of :meth:`append`."""
        with self._flushing:
            self._broken = self._broken or StoreError("its writer has closed it")


class Journal(GroupCommit):
    """A journal in a file: one fsync per commit, and one per folder with new files."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        with explained(StoreError, "the journal can't be opened", path):
            is_new = not path.exists()
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                _cut_torn_line(self._fd)
                if is_new:
                    sync_directory(path.parent)
            except OSError:
                os.close(self._fd)
                raise

    def _commit(self, lines: list[bytes], files: set[str]) -> None:
        for directory in {file.rpartition("/")[0] for file in files}:
            folder = self.path.parent / directory
            with explained(StoreError, "new files can't be made durable", folder):
                sync_directory(folder)
        with explained(StoreError, "the journal can't be written", self.path):
            self._append(b"".join(lines))

    def _append(self, lines: bytes) -> None:
        end = os.lseek(self._fd, 0, os.SEEK_END)
        try:
            _write_all(self._fd, lines)
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, end)  # never leave a torn line in the middle
            raise

    def close(self) -> None:
        """Also forgets the descriptor, whose number may soon be another file's."""
        super().close()
        with self._flushing:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _cut_torn_line(fd: int) -> None:
    """Cut off an unfinished last line, which a killed writer left."""
    size = os.lseek(fd, 0, os.SEEK_END)
    end = size
    while end:
        start = max(0, end - 65536)
        block = os.pread(fd, end - start, start)
        cut = block.rfind(b"\n")
        if cut >= 0:
            end = start + cut + 1
            break
        end = start
    if end != size:
        os.ftruncate(fd, end)
        os.fsync(fd)
