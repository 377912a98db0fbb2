"""A store's storage in a directory, on a local or mounted file system."""

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from hslib.errors import StoreError
from hslib.files import (
    Lock,
    TensorFile,
    explained,
    open_tensors,
    write_atomically,
    write_file,
)
from hslib.store.contract import HeldLock, Rename, Stat
from hslib.store.entry import Entry
from hslib.store.journal import Journal, read_journal


class Directory:
    """Storage in a directory (:class:`hslib.store.contract.Storage`)."""

    def __init__(self, path: Path) -> None:
        self.url = self.path = path

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        path = self.path / name
        with explained(StoreError, f"{name} can't be written", path):
            write_atomically(path, data)

    def entries(self, journal: str = "") -> Iterable[Entry]:
        paths = sorted(self.path.glob(journal or "journal*.jsonl"))
        return (entry for path in paths for entry in read_journal(path))

    def sample_file(self, index: int, _entry_id: str) -> str:
        return f"samples/{index // 1000:05d}/{index:08d}.safetensors"

    def put(self, file: str, parts: Sequence[bytes | memoryview], tag: str, rename: Rename) -> str:
        path = self.path / file
        with explained(StoreError, "a sample's file can't be written", path):
            write_file(path, parts, tag, rename)
        return ""

    def sweep(self, tag: str) -> None:
        for leftover in self.path.glob(f"samples/*/.*{tag}"):
            leftover.unlink(missing_ok=True)

    def open(self, file: str) -> TensorFile:
        return open_tensors(self.path / file)

    def read_range(self, file: str, start: int, end: int) -> bytes:
        with (self.path / file).open("rb") as handle:
            handle.seek(start)
            return handle.read(end - start)

    def read_ahead(self, file: str) -> None:
        try:
            fd = os.open(self.path / file, os.O_RDONLY)
        except OSError:
            return  # opening it will raise
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
        os.close(fd)

    def stat(self, file: str) -> Stat:
        return Stat((self.path / file).stat().st_size)

    def survey(self) -> Callable[[str], Stat]:
        return self.stat

    def move(self, file: str, target: str) -> None:
        source, aside = self.path / file, self.path / target
        aside.parent.mkdir(exist_ok=True)
        if source.exists():
            source.rename(aside)

    def lock(self, journal: str, what: str) -> Lock:
        with explained(StoreError, "the store's directory can't be made", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        return Lock(self.path / f".{journal}.lock", what)

    def locked(self) -> list[str]:
        names = (path.name for path in self.path.glob(".journal*.lock"))
        return [name[1:].removesuffix(".lock") for name in names]

    def journal(self, name: str, _lock: HeldLock) -> Journal:
        return Journal(self.path / name)

    def free_bytes(self) -> int | None:
        there = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        return shutil.disk_usage(there).free
