"""Causes that lengths alone can tell, for mismatches that no shift explains.

Each detector is a pure function of ``expected`` int64 [N], ``got`` int64 [N] and ``open_`` bool
[N], the mismatches that are not explained yet. It returns what it explains, or None. A rule must
explain far more than it would of unrelated lengths: lengths of four values often differ by the
same count, or by a factor of two.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hslib.diagnosis.rows import DatasetRows

_MIN_SUPPORT = 3  # fewer samples are an anecdote
_FRAME_MAX = 8  # tokens: BOS, EOS, the head of a turn
FOREIGN_TOKENS = (1, 3)  # tokens of SGLang's health check and warm-up
_CHANCE = 1e-5  # of a rule that explains this many unrelated lengths
_TURNS = 100  # ways to deal the lengths to other samples
_NEAR = 16  # samples; a shift this small may explain a length too
_PAGES = (1, 16, 32, 64)  # tokens; a prefix cache keeps whole pages


@dataclass(frozen=True, eq=False)
class Explained:
    """``where`` bool [N]: the samples that the cause explains."""

    where: np.ndarray
    evidence: str


Detector = Callable[[np.ndarray, np.ndarray, np.ndarray], Explained | None]


Fits = Callable[[np.ndarray, np.ndarray], np.ndarray]  # expected, got [n] -> bool [n]


def _enough(where: np.ndarray, of: np.ndarray, share: float) -> bool:
    count = int(where.sum())
    return count >= _MIN_SUPPORT and count >= share * int(of.sum())


def tail(hits: int, trials: int, p: float) -> float:
    """Chernoff's bound of P(at least ``hits`` of ``trials``), each with probability ``p``."""
    share = hits / max(1, trials)
    if share <= p or p >= 1:
        return 1.0
    nats = share * np.log(share / p)
    nats += (1 - share) * np.log((1 - share) / (1 - p)) if share < 1 else 0.0
    return float(np.exp(-trials * nats))


def _is_related(fits: Fits, expected: np.ndarray, got: np.ndarray, open_: np.ndarray) -> bool:
    """Whether a rule fits these pairs far more often than lengths dealt to other samples.

    Dealt to all others, and to the next ones: where lengths are sorted, those are alike.
    """
    wanted, came = expected[open_], got[open_]
    far = np.unique(np.linspace(1, len(came) - 1, _TURNS).astype(int)).tolist()
    near = [[turn] for turn in (1, -1, 2, -2, 3, -3)]
    p = max(_share_dealt(fits, wanted, came, turns) for turns in [far, *near])
    return tail(int(fits(wanted, came).sum()), len(came), p) < _CHANCE


def _share_dealt(fits: Fits, wanted: np.ndarray, came: np.ndarray, turns: list[int]) -> float:
    trials = hits = 0
    for turn in turns:
        dealt = np.roll(came, turn)
        differs = dealt != wanted
        trials += int(differs.sum())
        hits += int((fits(wanted, dealt) & differs).sum())
    return (hits + 1) / (trials + len(came))


def is_a_neighbours(expected: np.ndarray, got: np.ndarray, where: np.ndarray) -> bool:
    """Whether a small shift explains most of ``where`` too: samples nearby expected this."""
    found = np.zeros(len(got), bool)
    for step in range(1, min(_NEAR + 1, len(got))):
        found[step:] |= got[step:] == expected[:-step]
        found[:-step] |= got[:-step] == expected[step:]
    return bool(found[where].mean() >= 0.5)


def _is_too_frequent(value: int, expected: np.ndarray, got: np.ndarray, of: np.ndarray) -> bool:
    """Whether ``value`` came far more often than it was expected of any sample."""
    wanted = expected[expected > 0]
    p = (int((wanted == value).sum()) + 1) / (len(wanted) + 1)
    return tail(int((got[of] == value).sum()), int(of.sum()), p) < _CHANCE


def decode_step(expected: np.ndarray, got: np.ndarray, open_: np.ndarray) -> Explained | None:
    """At least 30 % of the compared dumps have one length of one to four tokens."""
    compared = (expected > 0) & (got > 0)
    for tokens in range(1, 5):
        where = open_ & (got == tokens)
        if _enough(where, compared, 0.3) and _is_too_frequent(tokens, expected, got, compared):
            text = f"{where.sum()} of {compared.sum()} dumps have {tokens} token(s)"
            return Explained(where, f"{text}, whatever was expected")
    return None


def foreign(expected: np.ndarray, got: np.ndarray, open_: np.ndarray) -> Explained | None:
    """A few dumps are as short as a health check or a warm-up."""
    where = open_ & np.isin(got, FOREIGN_TOKENS) & (expected > max(FOREIGN_TOKENS))
    if not where.any() or where.sum() > 0.3 * max(10, (got > 0).sum()):
        return None
    return Explained(where, f"{where.sum()} dumps of 1 or 3 tokens among longer ones")


def retraction(expected: np.ndarray, got: np.ndarray, open_: np.ndarray) -> Explained | None:
    """Exactly twice as many rows as tokens."""
    fits: Fits = lambda wanted, came: came == 2 * wanted  # noqa: E731
    where = open_ & fits(expected, got)
    if not _enough(where, open_, 0.05) or not _is_related(fits, expected, got, open_):
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
        if not _enough(where, longer, 0.85) or strays >= where.sum() / 5:
            continue
        if len(np.unique(expected[where])) < 2:  # rows of one length may as well lack a constant
            continue
        if value > max(FOREIGN_TOKENS) and _is_too_frequent(value, expected, got, open_):
            share = f"{where.sum()} of the {longer.sum()} longer samples that differ"
            return Explained(where, f"cut at {value} tokens: {share}")
    return None


def chunk(expected: np.ndarray, got: np.ndarray, open_: np.ndarray) -> Explained | None:
    """Only the last chunk, only whole chunks, or one chunk lost, for some chunk size."""
    best: Explained | None = None
    for size in _chunk_sizes(expected, got, open_):
        longer = open_ & (expected > size)
        for text, fits in _chunk_rules(size, _is_chunk_lost(expected, got, open_, size)):
            where = longer & fits(expected, got)
            if best is not None and where.sum() <= best.where.sum():
                continue
            if _enough(where, longer, 0.85) and _is_related(fits, expected, got, longer):
                best = Explained(
                    where, f"{text}: {where.sum()} of {longer.sum()} samples that are longer"
                )
    return best


def _chunk_rules(size: int, is_lost: bool) -> list[tuple[str, Fits]]:
    rules: list[tuple[str, Fits]] = [
        (f"only the last chunk of {size} tokens came", lambda w, c: c == (w - 1) % size + 1),
        (f"only whole chunks of {size} tokens came", lambda w, c: c == w // size * size),
    ]
    lost: Fits = lambda w, c: c == w - size  # noqa: E731
    return [*rules, (f"one chunk of {size} tokens is missing", lost)] if is_lost else rules


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
    """Two of three mismatches differ by the same count: special tokens or template text."""
    difference = got - expected
    values, counts = np.unique(difference[open_], return_counts=True)
    if not len(values):
        return None
    value = int(values[counts.argmax()])
    where = open_ & (difference == value)
    fits: Fits = lambda wanted, came: came - wanted == value  # noqa: E731
    if not _enough(where, open_, 2 / 3) or value < -_FRAME_MAX:
        return None
    if not _is_related(fits, expected, got, open_):
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
    shown = ", ".join(map(str, often[:5]))
    rules: list[tuple[str, float, Fits]] = [
        (
            f"the first sample is whole; later ones lack {shown} rows",
            0.8,
            lambda w, c: np.isin(w - c, often),
        )
    ]
    rules += [(f"most lack a multiple of {page} rows (a cache page)", 0.9, _lacks_pages(page))
              for page in (64, 16)]  # fmt: skip
    for text, share, fits in rules:
        where = fewer & fits(expected, got)
        if _enough(where, fewer, share) and _is_related(fits, expected, got, open_):
            return Explained(where, text)
    return None


def _lacks_pages(page: int) -> Fits:
    return lambda wanted, came: (wanted > came) & ((wanted - came) % page == 0)


def repeated_dump(expected: np.ndarray, got: np.ndarray, open_: np.ndarray) -> Explained | None:
    """One length most of the time, for samples expected shorter and longer alike."""
    values, counts = np.unique(got[open_], return_counts=True)
    if not len(values):
        return None
    value = values[counts.argmax()]
    where = open_ & (got == value)
    both_ways = (expected[where] > value).any() and (expected[where] < value).any()
    if not both_ways or not _enough(where, open_, 0.6):
        return None
    if not _is_too_frequent(int(value), expected, got, open_):
        return None
    return Explained(where, f"{where.sum()} samples got {value} tokens, shorter and longer ones")


#: Of those that explain equally many, the first counts.
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
    rows: DatasetRows, indices: np.ndarray, got: np.ndarray, open_: np.ndarray
) -> Explained | None:
    """Proves prefix-cache hits: the missing rows are the prefix that an earlier row has too.

    Args:
        indices: int64 [N], the dataset row of each position.
    """
    inside = open_ & (indices < len(rows)) & (got > 0)
    if inside.sum() < _MIN_SUPPORT:
        return None
    known = known_prefixes(rows)[np.minimum(indices, len(rows) - 1)]
    lengths = rows.lengths[np.minimum(indices, len(rows) - 1)]
    # a rule sees a sample by its place: two of one length have other prefixes
    places = np.arange(len(got))

    def fits(at: np.ndarray, came: np.ndarray) -> np.ndarray:
        missing = lengths[at] - came
        paged = [known[at] // page * page == missing for page in _PAGES]
        return np.asarray(np.any(paged, axis=0) & (missing > _FRAME_MAX))

    where = inside & fits(places, got)
    if where.sum() < _MIN_SUPPORT or not _is_related(fits, places, got, inside):
        return None
    return Explained(where, f"{where.sum()} lack exactly a prefix that an earlier row has too")


def known_prefixes(rows: DatasetRows) -> np.ndarray:
    """int64 [R]: how many of a row's first ids some earlier row begins with; less than all."""
    seen: list[bytes] = []
    found = np.zeros(len(rows), np.int64)
    for index in range(len(rows)):
        ids = rows.row(index)
        key = ids.tobytes()
        at = bisect_left(seen, key)  # the most alike are neighbours in order
        near = [np.frombuffer(other, ids.dtype) for other in seen[max(0, at - 1) : at + 1]]
        longest = max((_common_head(ids, other) for other in near), default=0)
        found[index] = min(longest, max(0, len(ids) - 1))
        seen.insert(at, key)
    return found


def _common_head(a: np.ndarray, b: np.ndarray) -> int:
    size = min(len(a), len(b))
    differs = np.flatnonzero(a[:size] != b[:size])
    return int(differs[0]) if len(differs) else size
