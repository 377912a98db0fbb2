"""A journal on an object store, where nothing can be appended to.

Its lines are in segments, ``{name}-{writer}-{number}.jsonl``, with a writer id that nobody else
has. A commit replaces the segment by its longer self in one request; a segment that is long enough
is left alone, and so is one that a request failed on.
"""

import secrets

import tenacity

from hslib.errors import StoreError
from hslib.journal import GroupCommit
from hslib.objects import Objects
from hslib.storage import HeldLock

SEGMENT_BYTES = 256 << 10
_TRIES = 6


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, StoreError) and bool(error.fields.get("retry"))


class ObjectJournal(GroupCommit):
    """The journal of one writer, for as long as it holds its lock."""

    def __init__(self, url: str, name: str, held: HeldLock) -> None:
        super().__init__()
        # Requests that failed may still arrive, late: none may be sent twice to one segment
        # behind our back, or it could take back what a later one added.
        self._objects = Objects(url, retries=False)
        self._held = held
        self._stem = f"{name.removesuffix('.jsonl')}-{secrets.token_hex(6)}"
        self._number, self._content = 1, b""

    def _commit(self, lines: list[bytes], _files: set[str]) -> None:
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(_TRIES),
            wait=tenacity.wait_exponential_jitter(initial=0.2, max=10.0),
            retry=tenacity.retry_if_exception(_may_pass),
            reraise=True,
        )
        retrying(self._put, b"".join(lines))

    def _put(self, lines: bytes) -> None:
        self._held.require_held()
        content = self._content + lines
        try:
            self._objects.put(f"{self._stem}-{self._number:06d}.jsonl", content)
        except BaseException:
            self._next_segment()
            raise
        self._content = content
        if len(content) >= SEGMENT_BYTES:
            self._next_segment()

    def _next_segment(self) -> None:
        self._number, self._content = self._number + 1, b""
