"""What a store needs of the place where it lies, and the place that is a directory.

Names are relative to the store. The other place is :mod:`hslib.store.bucket.storage`.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from hslib.files.lock import Lock
from hslib.files.safetensor import TensorFile, open_tensors
from hslib.files.write import write_file
from hslib.store.journal import Entry, Journal, JournalMark, read_journal
from hslib.store.manifest import write_atomically
from hslib.store.url import Place, read_place


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

    mark: JournalMark

    def append(self, entry: Entry) -> None:
        """Return when the entry, and its file before it, are durable."""

    def close(self) -> None: ...


class Storage(Protocol):
    """A place for a store. What is not there is a ``FileNotFoundError`` throughout."""

    @property
    def place(self) -> Place: ...

    def read(self, name: str) -> bytes:
        """A small file."""

    def write(self, name: str, data: bytes) -> None:
        """Replace a small file, all at once and durably."""

    def entries(self) -> Iterable[Entry]:
        """The lines of all journals."""

    def entries_since(self, mark: JournalMark) -> Iterable[Entry]:
        """The lines of one writer."""

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


def open_storage(place: str | Path) -> Storage:
    """Raises :class:`ParameterError` for a URL that is none of a store."""
    place = read_place(place)
    if isinstance(place, Path):
        return Directory(place)
    from hslib.store.bucket.storage import ObjectStore

    return ObjectStore(place)


def prove(place: Place) -> None:
    """Write, read and delete a small object; a directory shows soon enough what it lacks.

    Raises:
        StoreError: the object store refuses, or can't be reached.
    """
    if isinstance(place, str):
        from hslib.store.bucket.objects import Objects

        Objects(place).prove()


class Directory:
    """A store on a file system, local or mounted."""

    def __init__(self, path: Path) -> None:
        self.place = path

    def read(self, name: str) -> bytes:
        return (self.place / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        write_atomically(self.place / name, data)

    def entries(self) -> Iterable[Entry]:
        journals = sorted(self.place.glob("journal*.jsonl"))
        return (entry for journal in journals for entry in read_journal(journal))

    def entries_since(self, mark: JournalMark) -> Iterable[Entry]:
        return read_journal(self.place / mark.journal, mark.offset)

    def sample_file(self, index: int, _entry_id: str) -> str:
        return f"samples/{index // 1000:05d}/{index:08d}.safetensors"

    def put(self, file: str, parts: Sequence[bytes | memoryview], tag: str) -> str:
        write_file(self.place / file, parts, tag)
        return ""

    def sweep(self, tag: str) -> None:
        for leftover in self.place.glob(f"samples/*/.*{tag}"):
            leftover.unlink(missing_ok=True)

    def open(self, file: str) -> TensorFile:
        return open_tensors(self.place / file)

    def read_range(self, file: str, start: int, end: int) -> bytes:
        with (self.place / file).open("rb") as handle:
            handle.seek(start)
            return handle.read(end - start)

    def read_ahead(self, file: str) -> None:
        try:
            fd = os.open(self.place / file, os.O_RDONLY)
        except OSError:
            return  # opening it will tell
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
        os.close(fd)

    def stat(self, file: str) -> Stat:
        return Stat((self.place / file).stat().st_size)

    def survey(self) -> Callable[[str], Stat]:
        return self.stat

    def move(self, file: str, target: str) -> None:
        source, aside = self.place / file, self.place / target
        aside.parent.mkdir(exist_ok=True)
        if source.exists():
            source.rename(aside)

    def lock(self, journal: str, what: str) -> Lock:
        self.place.mkdir(parents=True, exist_ok=True)
        return Lock(self.place / f".{journal}.lock", what)

    def locked(self) -> list[str]:
        names = (path.name for path in self.place.glob(".journal*.lock"))
        return [name[1:].removesuffix(".lock") for name in names]

    def journal(self, name: str, _lock: HeldLock) -> Journal:
        return Journal(self.place / name)

    def free_bytes(self) -> int | None:
        found = os.statvfs(self.place)
        return found.f_bavail * found.f_frsize
