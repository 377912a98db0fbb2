"""A journal in a bucket, whose objects can't be appended to.

The lines are in segments, ``{name}-{writer}-{number}.jsonl``; each writer has an id of its own. A
commit replaces the last segment by a longer one, on condition that it still has the ETag of the
last commit: so a request that arrives late can't undo a later one. From 256 KiB on a segment is
left as it is, and the next is begun.
"""

import secrets

from hslib.errors import StoreError
from hslib.store.bucket.objects import Objects
from hslib.store.contract import HeldLock
from hslib.store.journal import GroupCommit

SEGMENT_BYTES = 256 << 10


class ObjectJournal(GroupCommit):
    """The journal of one writer, which must hold its lock."""

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
