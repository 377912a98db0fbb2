"""The record of what happened to each sample; a line in it is the commit.

JSON lines, appended to one file per shard and per part of one. Objects can't be appended to: see
:mod:`hslib.store.bucket.storage`.
"""

import abc
import threading
from collections.abc import Iterator
from pathlib import Path

from hslib.errors import StoreError
from hslib.files import AppendFile, explained, sync_directory
from hslib.store.entry import Entry, decode_lines, encode_line


def read_journal(path: Path) -> Iterator[Entry]:
    """All whole lines; a torn last line (a killed writer's) is left out.

    Raises:
        StoreError: a line inside the file that is not an entry, or the file can't be read.
        FileNotFoundError: it is not there.
    """
    with path.open("rb") as lines, explained(StoreError, "the journal can't be read", path):
        yield from decode_lines(lines, str(path))


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
            self._file = AppendFile(path)

    def _commit(self, lines: list[bytes], files: set[str]) -> None:
        for directory in {file.rpartition("/")[0] for file in files}:
            folder = self.path.parent / directory
            with explained(StoreError, "new files can't be made durable", folder):
                sync_directory(folder)
        with explained(StoreError, "the journal can't be written", self.path):
            self._file.append(lines)

    def close(self) -> None:
        super().close()
        with self._flushing:
            self._file.close()
