"""A store's storage in a bucket.

Each sample's object has a name of its own that is never used again, so no writer can overwrite
another's. Only the journal says which object is the sample.
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from hslib.errors import StoreError
from hslib.files import TensorFile, parse_tensors
from hslib.store.bucket.lock import ObjectLock
from hslib.store.bucket.objects import Objects
from hslib.store.contract import HeldLock, Rename, Stat
from hslib.store.entry import Entry, decode_lines
from hslib.store.journal import GroupCommit

_READERS = 8
SEGMENT_BYTES = 256 << 10


class ObjectJournal(GroupCommit):
    """The journal of one writer, which must hold its lock; objects can't be appended to.

    Lines are in segments, ``{name}-{writer}-{number}.jsonl``; each writer has an id of its own. A
    commit replaces the last segment by a longer one, on condition that it still has the ETag of
    the last commit: so a request that arrives late can't undo a later one. From 256 KiB on a
    segment is left as it is, and the next is begun.
    """

    def __init__(self, objects: Objects, name: str, held: HeldLock) -> None:
        super().__init__()
        self._objects, self._held = objects, held
        self._stem = f"{name.removesuffix('.jsonl')}-{secrets.token_hex(6)}"
        self._number, self._content, self._etag = 1, b"", ""

    def _commit(self, lines: list[bytes], _files: set[str]) -> None:
        self._held.require_held()
        name = f"{self._stem}-{self._number:06d}.jsonl"
        content = self._content + b"".join(lines)
        etag = self._objects.put_if(name, content, self._etag)
        if etag is None:
            raise StoreError(
                "somebody else writes to this writer's part of the journal",
                path=f"{self._objects.url}/{name}",
                fix="keep others away from the store, and run again to resume",
            )
        self._content, self._etag = content, etag
        if len(content) >= SEGMENT_BYTES:
            self._number, self._content, self._etag = self._number + 1, b"", ""


class ObjectStore:
    """Storage below a prefix of a bucket (:class:`hslib.store.contract.Storage`)."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.objects = Objects(url)

    def read(self, name: str) -> bytes:
        return self.objects.get(name)

    def write(self, name: str, data: bytes) -> None:
        self.objects.put(name, data)

    def entries(self, journal: str = "") -> Iterable[Entry]:
        stem = f"{journal.removesuffix('.jsonl')}-" if journal else "journal"
        names = [found.name for found in self.objects.list(stem)]
        segments = [name for name in names if name.endswith(".jsonl")]
        with ThreadPoolExecutor(_READERS) as pool:
            for name, content in zip(segments, pool.map(self.objects.get, segments), strict=True):
                lines = content.splitlines(keepends=True)
                yield from decode_lines(lines, f"{self.url}/{name}")

    def sample_file(self, index: int, entry_id: str) -> str:
        return f"samples/{index // 1000:05d}/{index:08d}-{entry_id}.safetensors"

    def put(
        self, file: str, parts: Sequence[bytes | memoryview], _tag: str, _rename: Rename
    ) -> str:
        return self.objects.put_parts(file, parts)

    def sweep(self, _tag: str) -> None:
        """Nothing to do: an unfinished upload is not an object."""

    def open(self, file: str) -> TensorFile:
        return parse_tensors(f"{self.url}/{file}", self.objects.get(file))

    def read_range(self, file: str, start: int, end: int) -> bytes:
        return self.objects.get(file, start, end)

    def read_ahead(self, _file: str) -> None:
        """Nothing to do: readers download several objects at once."""

    def stat(self, file: str) -> Stat:
        found = self.objects.head(file)
        return Stat(found.size_bytes, found.etag)

    def survey(self) -> Callable[[str], Stat]:
        """From a listing: a thousand objects per request."""
        found = {o.name: Stat(o.size_bytes, o.etag) for o in self.objects.list("samples/")}

        def stat(file: str) -> Stat:
            if file not in found:
                raise FileNotFoundError(file)
            return found[file]

        return stat

    def move(self, file: str, target: str) -> None:
        try:
            self.objects.move(file, target)
        except FileNotFoundError:
            return

    def lock(self, journal: str, what: str) -> ObjectLock:
        return ObjectLock(self.objects, f".{journal}.lock", what)

    def locked(self) -> list[str]:
        names = (found.name for found in self.objects.list(".journal"))
        return [name[1:].removesuffix(".lock") for name in names]

    def journal(self, name: str, lock: HeldLock) -> ObjectJournal:
        return ObjectJournal(self.objects, name, lock)

    def free_bytes(self) -> int | None:
        return None
