"""Some hundred conversations made into output lines, in this process or in workers."""

import gzip
import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from itertools import chain, islice
from multiprocessing.connection import wait
from typing import Any

import msgspec
import orjson
import xxhash
import zstandard

from hslib.dataset import Rejection
from hslib.errors import JobError
from hslib.rows.chat import Chat, load_chat
from hslib.rows.recipe import Recipe
from hslib.rows.row import Row, make_rows

Raw = list[tuple[int, dict[str, Any] | Rejection]]

CHUNK = 256  # conversations; part of what a resumed file's bytes depend on
_AHEAD = 3  # chunks per worker that wait, made or to be made


class Counts(msgspec.Struct, frozen=True):
    """What became of some conversations."""

    conversations: int = 0
    rows: int = 0
    tokens: int = 0
    trained: int = 0  # tokens whose mask is 1
    longest: int = 0  # tokens of the longest row
    single_turns: int = 0  # rows of which one turn trains, since it looks otherwise later
    rejected: dict[str, int] = {}  # by reason

    def line(self) -> str:
        """Progress."""
        return f"{self.conversations:,} conversations read, {self.rows:,} rows made"

    @property
    def rejected_share(self) -> float:
        """Of the rows that were made or rejected, those that were rejected."""
        rejected = sum(self.rejected.values())
        return rejected / max(1, rejected + self.rows)

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.conversations + other.conversations,
            self.rows + other.rows,
            self.tokens + other.tokens,
            self.trained + other.trained,
            max(self.longest, other.longest),
            self.single_turns + other.single_turns,
            dict(Counter(self.rejected) + Counter(other.rejected)),
        )


class MadeChunk(msgspec.Struct, frozen=True):
    """``lines`` and ``rejected`` as they go to their files."""

    digest: str
    counts: Counts
    lines: bytes
    rejected: bytes


def digest_of(raw: Raw) -> str:
    """xxh3-128 of the parsed rows; also of such that JSON can't express."""
    return xxhash.xxh3_128_hexdigest(repr(raw).encode())


def make_chunk(chat: Chat, raw: Raw, suffix: str) -> MadeChunk:
    """Make a chunk's rows.

    Args:
        suffix: ``.gz`` or ``.zst``: each chunk becomes a member or frame of its own.
    """
    return packed_chunk(digest_of(raw), len(raw), make_rows(chat, raw), suffix)


def packed_chunk(
    digest: str, conversations: int, items: Sequence[Row | Rejection], suffix: str
) -> MadeChunk:
    """The lines of rows and of rejections, and their counts."""
    rows = [item for item in items if isinstance(item, Row)]
    rejected = [item for item in items if isinstance(item, Rejection)]
    counts = Counts(
        conversations=conversations,
        rows=len(rows),
        tokens=sum(len(row.input_ids) for row in rows),
        trained=sum(int(row.loss_mask.sum()) for row in rows),
        longest=max((len(row.input_ids) for row in rows), default=0),
        single_turns=sum(row.turn is not None for row in rows),
        rejected=dict(Counter(item.reason for item in rejected)),
    )
    lines = _joined(orjson.dumps(row.as_dict(), option=orjson.OPT_SERIALIZE_NUMPY) for row in rows)
    refused = _joined(orjson.dumps(_printable(item)) for item in rejected)
    return MadeChunk(digest, counts, _packed(lines, suffix), refused)


def _joined(lines: Iterable[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _printable(item: Rejection) -> dict[str, Any]:
    """Evidence may hold half of a surrogate pair, which JSON can't express."""
    return {
        name: value.encode("utf-8", "backslashreplace").decode()
        if isinstance(value, str)
        else value
        for name, value in asdict(item).items()
    }


def _packed(lines: bytes, suffix: str) -> bytes:
    if not lines:
        return b""
    if suffix == ".gz":
        return gzip.compress(lines, mtime=0)
    return zstandard.compress(lines) if suffix == ".zst" else lines


def cut(rows: Iterator[tuple[int, dict[str, Any] | Rejection]]) -> Iterator[Raw]:
    """The rows in chunks."""
    while chunk := list(islice(rows, CHUNK)):
        yield chunk


def made_chunks(
    chat: Chat, chunks: Iterator[Raw], suffix: str, workers: int
) -> Iterator[MadeChunk]:
    """Every chunk in order; at most a few per worker are in memory.

    One chunk alone is made here: workers take seconds to start.

    Raises:
        JobError: a worker died.
    """
    first = list(islice(chunks, 2))
    if workers <= 1 or len(first) < 2:
        for raw in chain(first, chunks):
            yield make_chunk(chat, raw, suffix)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, _start_worker, (chat.recipe, suffix))
    waiting: deque[Future[MadeChunk]] = deque()
    try:
        for raw in chain(first, chunks):
            waiting.append(pool.submit(_make_in_worker, raw))
            if len(waiting) >= _AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise JobError(
            "a process that makes rows died",
            fix="run again to go on where it stopped; with fewer workers if memory was short",
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_at_work: tuple[Chat, str] | None = None  # of a worker process


def _start_worker(recipe: Recipe, suffix: str) -> None:
    global _at_work
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # read when the library is loaded
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops them
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _at_work = load_chat(recipe), suffix


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _make_in_worker(raw: Raw) -> MadeChunk:
    assert _at_work is not None
    chat, suffix = _at_work
    return make_chunk(chat, raw, suffix)
