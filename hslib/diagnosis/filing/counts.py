"""Causes that lengths alone can tell, for mismatches that no shift explains.

Each detector is a pure function of ``expected`` int64 [N], ``got`` int64 [N] and ``open_`` bool
[N], the mismatches that are not explained yet. It returns what it explains, or None.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import xxhash

from hslib.diagnosis.rows import Rows

_MIN_SUPPORT = 3  # fewer samples are an anecdote
_FRAME_MAX = 8  # tokens: BOS, EOS, the head of a turn
_FOREIGN = (1, 3)  # tokens of SGLang's health check and warm-up
_MAX_CACHED_LENGTHS = 64


@dataclass(frozen=True, eq=False)
class Explained:
    """``where`` bool [N]: the samples that the cause explains."""

    where: np.ndarray
    evidence: str


Detector = Callable[[np.ndarray, np.ndarray, np.ndarray], Explained | None]


def _enough(where: np.ndarray, of: np.ndarray, share: float) -> bool:
    count = int(where.sum())
    return count >= _MIN_SUPPORT and count >= share * int(of.sum())


def decode_step(expected: np.ndarray, got: np.ndarray, open_: np.ndarray) -> Explained | None:
    """At least 30 % of the compared dumps have one length of one to four tokens."""
    compared = (expected > 0) & (got > 0)
    for tokens in range(1, 5):
        where = open_ & (got == tokens)
        if _enough(where, compared, 0.3):
            text = f"{where.sum()} of {compared.sum()} dumps have {tokens} token(s)"
            return Explained(where, f"{text}, whatever was expected")
    return None


def foreign(expected: np.ndarray, got: np.ndarray, open_: np.ndarray) -> Explained | None:
    """A few dumps are as short as a health check or a warm-up."""
    where = open_ & np.isin(got, _FOREIGN) & (expected > max(_FOREIGN))
    if not where.any() or where.sum() > 0.3 * max(10, (got > 0).sum()):
        return None
    return Explained(where, f"{where.sum()} dumps of 1 or 3 tokens among longer ones")


def retraction(expected: np.ndarray, got: np.ndarray, open_: np.ndarray) -> Explained | None:
    """Exactly twice as many rows as tokens."""
    where = open_ & (got == 2 * expected)
    if not _enough(where, open_, 0.05):
        return None
    return Explained(where, f"{where.sum()} dumps have exactly twice the expected rows")


def limit(expected: np.ndarray, got: np.ndarray, open_: np.ndarray) -> Explained | None:
    """A plateau: everything longer than L came with L rows, and nothing came longer."""
    candidates, counts = np.unique(got[open_], return_counts=True)
    for value in candidates[np.argsort(-counts)][:3]:
        where = open_ & (got == value) & (expected > value)
        longer = open_ & (expected > value)
        over = (got > value) & (expected > 0)
        raised = open_ & (got == value) & (expected < value)  # a limit makes nothing longer
        strays = max(over.sum(), 2 * raised.sum())
        if value > max(_FOREIGN) and _enough(where, longer, 0.85) and strays < where.sum() / 5:
            share = f"{where.sum()} of the {longer.sum()} that differ and are longer"
            return Explained(where, f"cut at {value} tokens: {share}")
    return None


def chunk(expected: np.ndarray, got: np.ndarray, open_: np.ndarray) -> Explained | None:
    """Only the last chunk, only whole chunks, or one chunk lost, for some chunk size."""
    best: Explained | None = None
    for size in _chunk_sizes(expected, got, open_):
        longer = open_ & (expected > size)
        last = (got == (expected - 1) % size + 1, f"only the last chunk of {size} tokens came")
        whole = (got == expected // size * size, f"only whole chunks of {size} tokens came")
        lost = (
            (got == expected - size) & _is_chunk_lost(expected, got, open_, size),
            f"one chunk of {size} tokens is missing",
        )
        for fits, text in (last, whole, lost):
            where = longer & fits
            if not _enough(where, longer, 0.85):
                continue
            if best is None or where.sum() > best.where.sum():
                best = Explained(where, f"{text}: {where.sum()} of {longer.sum()} longer ones")
    return best


def _is_chunk_lost(expected: np.ndarray, got: np.ndarray, open_: np.ndarray, size: int) -> bool:
    """Whether the first long sample lacks rows too; with a cached prefix it would be whole."""
    compared = np.flatnonzero((expected > size) & (got > 0))
    is_power = size & (size - 1) == 0
    return is_power and len(compared) > 0 and bool(open_[compared[0]])


def _chunk_sizes(expected: np.ndarray, got: np.ndarray, open_: np.ndarray) -> list[int]:
    """Powers of two, and the common divisor of the missing counts."""
    missing = (expected - got)[open_]
    missing = missing[missing >= 32]
    if not len(missing):
        return []
    powers = [1 << power for power in range(5, 18)]
    common = int(np.gcd.reduce(missing))
    return sorted({*powers, *([common] if common >= 32 else [])})


def constant(expected: np.ndarray, got: np.ndarray, open_: np.ndarray) -> Explained | None:
    """At least 30 % of the mismatches differ by the same count: special tokens or template text."""
    difference = got - expected
    values, counts = np.unique(difference[open_], return_counts=True)
    if not len(values):
        return None
    value = int(values[counts.argmax()])
    where = open_ & (difference == value)
    if not _enough(where, open_, 0.3) or value < -_FRAME_MAX:
        return None
    return Explained(where, f"{where.sum()} of {open_.sum()} differ by exactly {value:+d} tokens")


def shared_prefix(expected: np.ndarray, got: np.ndarray, open_: np.ndarray) -> Explained | None:
    """The first sample is whole; later ones lack a repeated count, or whole cache pages."""
    missing = expected - got
    fewer = open_ & (missing > 0)
    compared = np.flatnonzero((expected > 0) & (got > 0))
    if not _enough(fewer, open_, 0.5) or open_[compared[0]]:
        return None
    values, counts = np.unique(missing[fewer], return_counts=True)
    often = values[counts >= _MIN_SUPPORT]
    repeated = fewer & np.isin(missing, often)
    if _enough(repeated, fewer, 0.8):
        shown = ", ".join(map(str, often[:5]))
        return Explained(repeated, f"the first sample is whole; later ones lack {shown} rows")
    for page in (64, 16):
        paged = fewer & (missing % page == 0)
        if _enough(paged, fewer, 0.9) and paged.sum() * np.log(page) > 12:
            return Explained(paged, f"{paged.sum()} lack a multiple of {page} rows (a cache page)")
    return None


def repeated_dump(expected: np.ndarray, got: np.ndarray, open_: np.ndarray) -> Explained | None:
    """One length again and again, for samples expected shorter and longer alike."""
    values, counts = np.unique(got[open_], return_counts=True)
    if not len(values):
        return None
    value = values[counts.argmax()]
    where = open_ & (got == value)
    both_ways = (expected[where] > value).any() and (expected[where] < value).any()
    if not both_ways or not _enough(where, open_, 0.3):
        return None
    return Explained(where, f"{where.sum()} samples got {value} tokens, shorter and longer alike")


#: In this order; a later detector does not see what an earlier one explained.
DETECTORS: tuple[tuple[str, Detector], ...] = (
    ("decode_step", decode_step),
    ("retraction", retraction),
    ("limit", limit),
    ("chunk", chunk),
    ("frame", constant),
    ("prefix_cache", shared_prefix),
    ("repeated_dump", repeated_dump),
    ("foreign", foreign),
)


def cached_prefixes(
    rows: Rows, indices: np.ndarray, got: np.ndarray, open_: np.ndarray
) -> Explained | None:
    """Proves prefix-cache hits: the missing rows are a prefix that an earlier row has too.

    Args:
        indices: int64 [N], the dataset row of each position.
    """
    inside = open_ & (indices < len(rows))
    missing = np.where(inside, rows.lengths[np.minimum(indices, len(rows) - 1)] - got, 0)
    values, counts = np.unique(missing[inside & (missing > _FRAME_MAX)], return_counts=True)
    where = np.zeros(len(got), bool)
    for cached in values[np.argsort(-counts)][:_MAX_CACHED_LENGTHS].tolist():
        wanted = set(indices[inside & (missing == cached)].tolist())
        where[np.isin(indices, _with_known_prefix(rows, wanted, cached))] = True
    where &= inside
    if where.sum() < _MIN_SUPPORT:
        return None
    return Explained(
        where, f"{where.sum()} lack exactly a prefix whose ids an earlier row begins with too"
    )


def _with_known_prefix(rows: Rows, wanted: set[int], cached: int) -> list[int]:
    """Those of ``wanted`` whose first ``cached`` ids are an earlier row's too."""
    seen: set[int] = set()
    found = []
    for index in range(max(wanted) + 1):
        if rows.lengths[index] < cached:
            continue
        prefix = xxhash.xxh3_64_intdigest(rows.row(index)[:cached].data)
        if index in wanted and prefix in seen:
            found.append(index)
        seen.add(prefix)
    return found
