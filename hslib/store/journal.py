"""The record of what happened to each sample; a line in it is the commit.

One file per shard, JSON lines, only ever appended. Lines of several files have no common
order, so none is needed: an ``ok`` line holds until a ``revoked`` line names its ``entry``.
Objects can't be appended to: see :mod:`hslib.store.bucket.journal`.
"""

import abc
import errno
import os
import threading
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from hslib.errors import StoreError
from hslib.files import sync_directory

Status = Literal["ok", "failed", "rejected", "revoked"]


def _entry_id() -> str:
    return uuid.uuid4().hex[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One journal line.

    ``file`` is relative to the store; ``checksum`` covers the file's tensors; ``etag`` is what an
    object store called the file's content, else empty; ``layers`` holds per state
    ``finite, absmax, mean_l2, zero_share``; ``finished_at`` is unix seconds.
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
        StoreError: a line inside the file that is not an entry.
    """
    with path.open("rb") as lines:
        yield from decode_lines(lines, str(path))


def encode_line(entry: Entry) -> bytes:
    return _ENCODER.encode(entry) + b"\n"


def decode_lines(lines: Iterable[bytes], path: str) -> Iterator[Entry]:
    """What :func:`read_journal` does, of lines from anywhere."""
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
    """What the journals together say: at most one live entry an index."""

    stored: dict[int, Entry] = field(default_factory=dict)
    failed: dict[int, Entry] = field(default_factory=dict)
    rejected: dict[int, Entry] = field(default_factory=dict)


def combine(entries: Iterable[Entry]) -> JournalState:
    """Reduce journal lines of any number of shards, in any order, to their meaning. Pure.

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
        """Return when the entry, and its file before it, are durable.

        Raises:
            OSError, HslibError: they are not, as far as is known. Whether lines of that moment
                count is then up to the place: nothing more is written through this journal,
                every later call raises, and the next run reads what is there.
        """
        line = encode_line(entry)
        with self._lock:
            self._pending.append((line, entry.file))
            self._written += 1
            mine = self._written
        with self._flushing:
            if self._broken is not None:
                number = getattr(self._broken, "errno", None) or errno.EIO
                raise OSError(number, f"the journal is closed: {self._broken}")
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
        """Make lines durable, and before them the names of the files."""

    def close(self) -> None:
        """Nothing is written any more."""
        with self._flushing:
            self._broken = self._broken or OSError(errno.EBADF, "it was closed")


class Journal(GroupCommit):
    """The journal in a file: an fsync a commit, and one for each folder with new names."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        is_new = not path.exists()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        _cut_torn_line(self._fd)
        if is_new:
            sync_directory(path.parent)

    def _commit(self, lines: list[bytes], files: set[str]) -> None:
        for directory in {file.rpartition("/")[0] for file in files}:
            sync_directory(self.path.parent / directory)
        end = os.lseek(self._fd, 0, os.SEEK_END)
        try:
            _write_all(self._fd, b"".join(lines))
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, end)  # never leave a torn line in the middle
            raise

    def close(self) -> None:
        """The descriptor's number may soon be another file's."""
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
    """Drop what a killed writer left behind the last line's end."""
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
