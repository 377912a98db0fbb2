"""What a store needs of the place where it lies; names are relative to the store.

:mod:`hslib.store.directory` and :mod:`hslib.store.bucket` are the two places.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from hslib.files import TensorFile
from hslib.store.journal import Entry
from hslib.store.url import StoreUrl


class Stat(NamedTuple):
    """What a place says of a file without reading it; ``etag`` is empty in a directory."""

    size_bytes: int
    etag: str = ""


class HeldLock(Protocol):
    """What keeps two jobs apart."""

    def acquire(self) -> None:
        """Raises :class:`JobError` with the owner when another job holds it."""

    def require_held(self) -> None:
        """Raises :class:`JobError` when it no longer is."""

    def release(self) -> None: ...


class OpenJournal(Protocol):
    """Where a writer's lines go."""

    def append(self, entry: Entry) -> None:
        """Return when the entry, and its file before it, are durable."""

    def close(self) -> None: ...


class Storage(Protocol):
    """A place for a store. What is not there is a ``FileNotFoundError`` throughout."""

    @property
    def place(self) -> StoreUrl: ...

    def read(self, name: str) -> bytes:
        """A small file."""

    def write(self, name: str, data: bytes) -> None:
        """Replace a small file, all at once and durably."""

    def entries(self, journal: str = "") -> Iterable[Entry]:
        """The lines of all journals, or of the one of that name."""

    def sample_file(self, index: int, entry_id: str) -> str:
        """The name of a sample's file."""

    def put(self, file: str, parts: Sequence[bytes | memoryview], tag: str) -> str:
        """Write a sample's file, which appears whole or not at all; returns its ETag, if any.

        Args:
            tag: what the writer's unfinished files are known by.
        """

    def sweep(self, tag: str) -> None:
        """Remove unfinished files of killed writers; ``tag`` may hold wildcards."""

    def open(self, file: str) -> TensorFile:
        """A sample's arrays. Raises :class:`TensorFileError` when the file is not whole."""

    def read_range(self, file: str, start: int, end: int) -> bytes:
        """A part of a file, as much of it as there is."""

    def read_ahead(self, file: str) -> None:
        """The file will be wanted soon."""

    def stat(self, file: str) -> Stat: ...

    def survey(self) -> Callable[[str], Stat]:
        """:meth:`stat` for all samples, one by one."""

    def move(self, file: str, target: str) -> None:
        """Out of the way; a file that is gone already is no error."""

    def lock(self, journal: str, what: str) -> HeldLock:
        """The lock of a journal's writer; makes the place if need be."""

    def locked(self) -> list[str]:
        """The journals that have a lock, held or left behind."""

    def journal(self, name: str, lock: HeldLock) -> OpenJournal:
        """The journal, for the holder of its lock."""

    def free_bytes(self) -> int | None:
        """What is free, None where nothing bounds it."""
