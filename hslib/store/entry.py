"""A line of the journal, and what lines together mean. Pure.

Lines of several journals have no common order: an ``ok`` line is live until a ``revoked`` line
names its ``entry``, and of two that live the later ``finished_at`` counts.
"""

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from hslib.errors import StoreError

Status = Literal["ok", "failed", "rejected", "revoked"]


def _entry_id() -> str:
    return uuid.uuid4().hex[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One journal line.

    ``file`` is relative to the store. ``encoding``: how it keeps the states. ``checksum``: xxh3-64
    of states (bfloat16 [T, L, H], as readers get them), ids and mask. ``file_checksum``: xxh3-64 of
    the file's tensors, where they are encoded. ``etag``: the object's ETag, empty in a
    directory. ``layers``: per state ``finite, absmax, mean_l2, zero_share, witness``, and
    ``encoding_error`` where the encoding loses something. ``finished_at``: unix seconds.
    """

    index: int
    id: str
    status: Status
    num_tokens: int = 0
    digest: str = ""
    mask_digest: str = ""
    file: str = ""
    encoding: str = "plain"
    size_bytes: int = 0
    checksum: str = ""
    file_checksum: str = ""
    etag: str = ""
    attempts: int = 0
    latency_s: float = 0.0
    reason: str = ""
    layers: list[dict[str, Any]] = field(default_factory=list)
    finished_at: float = 0.0
    entry: str = field(default_factory=_entry_id)
    revokes: str = ""


_DECODER = msgspec.json.Decoder(Entry)  # a third of the time of orjson and Entry(**row)
_ENCODER = msgspec.json.Encoder()


def journal_name(shard_index: int, num_shards: int, part: str = "") -> str:
    """``journal.jsonl``, ``journal-00003-of-00008.jsonl`` for a shard, and
    ``journal-part-1f03a9-00017.jsonl`` for a part of either, as a cluster's tasks write them."""
    shard = f"-{shard_index:05d}-of-{num_shards:05d}" if num_shards > 1 else ""
    return f"journal{shard}-part-{part}.jsonl" if part else f"journal{shard}.jsonl"


def encode_line(entry: Entry) -> bytes:
    return _ENCODER.encode(entry) + b"\n"


def decode_lines(lines: Iterable[bytes], path: str) -> Iterator[Entry]:
    """Entries of journal lines, as :func:`read_journal` reads them."""
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            return
        try:
            yield _DECODER.decode(line)
        except msgspec.DecodeError as error:
            raise StoreError(
                f"line {number} of the journal is not an entry: {error}",
                path=path,
                fix="restore the file from a backup, or remove that line: "
                "its sample is then extracted again",
            ) from error


@dataclass(frozen=True)
class JournalState:
    """What all journals together say: at most one live entry per index."""

    stored: dict[int, Entry] = field(default_factory=dict)
    failed: dict[int, Entry] = field(default_factory=dict)
    rejected: dict[int, Entry] = field(default_factory=dict)
    revoked: dict[int, Entry] = field(default_factory=dict)  # the last such line; of none stored


def combine(entries: Iterable[Entry]) -> JournalState:
    """Reduce the lines of any number of journals, in any order, to their state. Pure.

    A live ``ok`` beats a failure; of several live lines the one with the latest ``finished_at``
    counts. A failure that an ``ok`` has followed does not come back when that one is revoked.
    """
    lines = list(entries)
    revoked = {entry.revokes for entry in lines if entry.status == "revoked"}
    succeeded: dict[int, float] = {}  # when a row was stored last, whether that line lives or not
    for entry in lines:
        if entry.status == "ok":
            latest = max(succeeded.get(entry.index, 0.0), entry.finished_at)
            succeeded[entry.index] = latest
    found: dict[str, dict[int, Entry]] = {"ok": {}, "failed": {}, "rejected": {}}
    for entry in lines:
        if entry.status == "revoked" or entry.entry in revoked:
            continue
        kept = found[entry.status].get(entry.index)
        if kept is None or kept.finished_at <= entry.finished_at:
            found[entry.status][entry.index] = entry
    stored = dict(sorted(found["ok"].items()))
    failed = {
        i: e
        for i, e in sorted(found["failed"].items())
        if i not in stored and e.finished_at > succeeded.get(i, -1.0)
    }
    rejected = {i: e for i, e in sorted(found["rejected"].items()) if i not in stored}
    taken = [e for e in lines if e.status == "revoked" and e.index not in stored]
    taken_back = {e.index: e for e in sorted(taken, key=lambda entry: entry.finished_at)}
    return JournalState(stored, failed, rejected, taken_back)
