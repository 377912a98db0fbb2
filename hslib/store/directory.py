"""The store's place that is a directory on a file system, local or mounted."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from hslib.files import Lock, TensorFile, open_tensors, write_atomically, write_file
from hslib.store.contract import HeldLock, Stat
from hslib.store.journal import Entry, Journal, read_journal


class Directory:
    """A store on a file system, local or mounted."""

    def __init__(self, path: Path) -> None:
        self.place = path

    def read(self, name: str) -> bytes:
        return (self.place / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        write_atomically(self.place / name, data)

    def entries(self, journal: str = "") -> Iterable[Entry]:
        paths = sorted(self.place.glob(journal or "journal*.jsonl"))
        return (entry for path in paths for entry in read_journal(path))

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
        there = next(path for path in (self.place, *self.place.absolute().parents) if path.exists())
        found = os.statvfs(there)
        return found.f_bavail * found.f_frsize
