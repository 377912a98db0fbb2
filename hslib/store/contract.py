"""The operations that a store needs of its storage; file names are relative to the store.

:mod:`hslib.store.directory` and :mod:`hslib.store.bucket.storage` implement them.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from hslib.files import TensorFile
from hslib.store.entry import Entry
from hslib.store.url import StoreUrl

Rename = Callable[[Path, Path], object]


class Stat(NamedTuple):
    """Size and ETag of a file, known without reading it; a directory has no ETags."""

    size_bytes: int
    etag: str = ""


class HeldLock(Protocol):
    """A lock that keeps two jobs apart."""

    def acquire(self) -> None:
        """Raises :class:`JobError`, with the owner when another job holds it."""

    def require_held(self) -> None:
        """Raises :class:`JobError` when it may be lost."""

    def release(self) -> None: ...


class OpenJournal(Protocol):
    """The journal that a writer appends to."""

    def append(self, entry: Entry) -> None:
        """Return when the entry and its file are durable, the file first."""

    def close(self) -> None: ...


class Storage(Protocol):
    """Where a store is kept. A file that does not exist is a ``FileNotFoundError`` throughout."""

    @property
    def url(self) -> StoreUrl: ...

    def read(self, name: str) -> bytes:
        """A small file."""

    def write(self, name: str, data: bytes) -> None:
        """Replace a small file, all at once and durably."""

    def entries(self, journal: str = "") -> Iterable[Entry]:
        """The lines of all journals, or of the one of that name."""

    def sample_file(self, index: int, entry_id: str) -> str:
        """The name of a sample's file."""

    def put(self, file: str, parts: Sequence[bytes | memoryview], tag: str, rename: Rename) -> str:
        """Write a sample's file, which appears whole or not at all; returns its ETag, if any.

        Args:
            tag: ends the names of the writer's unfinished files.
            rename: makes a file of a directory appear, unless its writer is closed.
        """

    def sweep(self, tag: str) -> None:
        """Remove the unfinished files of killed writers; ``tag`` is a glob pattern."""

    def open(self, file: str) -> TensorFile:
        """A sample's arrays. Raises :class:`TensorFileError` when the file is not whole."""

    def read_range(self, file: str, start: int, end: int) -> bytes:
        """Bytes ``start:end`` of a file, or as many as it has."""

    def read_ahead(self, file: str) -> None:
        """Say that a file will be read soon."""

    def stat(self, file: str) -> Stat: ...

    def survey(self) -> Callable[[str], Stat]:
        """:meth:`stat` for all samples, one by one."""

    def move(self, file: str, target: str) -> None:
        """Move a file; one that is gone already is no error."""

    def lock(self, journal: str, what: str) -> HeldLock:
        """The lock of a journal's writer; makes the store's directory if needed."""

    def locked(self) -> list[str]:
        """The journals that have a lock, held or left by a dead writer."""

    def journal(self, name: str, lock: HeldLock) -> OpenJournal:
        """The journal, for the holder of its lock."""

    def free_bytes(self) -> int | None:
        """Free bytes; None where there is no limit."""
