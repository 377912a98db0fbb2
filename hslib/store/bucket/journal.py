"""A journal on an object store, where nothing can be appended to.

Its lines are in segments, ``{name}-{writer}-{number}.jsonl``, with a writer id that nobody else
has. A commit replaces the segment by its longer self, in one request that counts only if what is
there is what the last commit left: a request that arrives late takes nothing back. A segment that
is long enough is left alone, and the next begun.
"""

import secrets

from hslib.errors import StoreError
from hslib.store.bucket.objects import Objects
from hslib.store.contract import HeldLock
from hslib.store.journal import GroupCommit

SEGMENT_BYTES = 256 << 10


class ObjectJournal(GroupCommit):
    """The journal of one writer, for as long as it holds its lock."""

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
