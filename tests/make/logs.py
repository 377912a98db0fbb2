"""Lengths expected and got whose relation is known: what a log of a broken job would say."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hslib.diagnosis.filing.observations import UNKNOWN, Observations, observe

Lengths = np.ndarray
LENGTHS = ("lognormal", "short", "few", "equal")


def lengths(rng: np.random.Generator, count: int, kind: str = "lognormal") -> Lengths:
    """int64 [count]: spread out, short, of four values, or more than half cut at 4,096."""
    if kind == "short":
        return np.clip(rng.normal(40, 10, count), 3, 80).astype(np.int64)
    if kind == "few":
        return rng.choice([128, 256, 512, 1024], count)
    spread = np.clip(rng.lognormal(6.8, 0.9, count), 9, 4096).astype(np.int64)
    if kind == "equal":
        spread[rng.random(count) < 0.6] = 4096
    return spread


@dataclass(frozen=True, eq=False)
class Edited:
    """``got`` int64 [N]; ``sources`` int64 [N], -1 where nobody's; ``foreign`` bool [N]."""

    got: Lengths
    sources: Lengths
    foreign: np.ndarray


def edited(
    rng: np.random.Generator,
    expected: Lengths,
    kind: str = "lognormal",
    shift: int = 3,
    insertions: float = 0.01,
    deletions: float = 0.01,
    noise: float = 0.1,
) -> Edited:
    """What is got when the stream of dumps is shifted, interrupted, and partly unrelated."""
    stream = [(int(n), -1, False) for n in lengths(rng, shift, kind)]
    for index, value in enumerate(expected):
        if rng.random() < insertions:
            stream.append((int(rng.choice([1, 3])), -1, True))
        if rng.random() >= deletions:
            stream.append((int(value), index, False))
    stream += [(-1, -1, False)] * len(expected)
    got, sources, foreign = (np.array(c) for c in zip(*stream[: len(expected)], strict=True))
    unrelated = (rng.random(len(expected)) < noise) & ~foreign
    got = np.where(unrelated, lengths(rng, len(expected), kind), got)
    return Edited(got, np.where(unrelated, -1, sources), foreign)


def _shift(rng: np.random.Generator, expected: Lengths) -> Lengths:
    return edited(rng, expected, shift=int(rng.integers(1, 9)), insertions=0.0).got


def _decode(rng: np.random.Generator, expected: Lengths) -> Lengths:
    return np.where(rng.random(len(expected)) < 0.9, 1, expected)


def _foreign(rng: np.random.Generator, expected: Lengths) -> Lengths:
    got = expected.copy()
    got[rng.choice(len(got), 5, replace=False)] = rng.choice([1, 3], 5)
    return got


def _retracted(rng: np.random.Generator, expected: Lengths) -> Lengths:
    return np.where(rng.random(len(expected)) < 0.15, 2 * expected, expected)


def _chunk(rng: np.random.Generator, expected: Lengths) -> Lengths:
    size = int(rng.choice([128, 256, 512]))
    last, whole = (expected - 1) % size + 1, np.maximum(expected // size * size, 1)
    lost = expected - size
    got = (last, whole, lost)[rng.integers(3)]
    return np.where(expected > size, got, expected)


def _limit(rng: np.random.Generator, expected: Lengths) -> Lengths:
    return np.minimum(expected, int(rng.choice([512, 777, 1000, 1024])))


def _prefix(rng: np.random.Generator, expected: Lengths) -> Lengths:
    prefixes = rng.integers(9, 300, 3) if rng.random() < 0.5 else rng.integers(9, 300, 1)
    cached = rng.choice(prefixes, len(expected))
    got = np.where(expected > cached + 1, expected - cached, expected)
    got[0] = expected[0]
    return got


def _data_parallel(rng: np.random.Generator, expected: Lengths) -> Lengths:
    count = int(rng.choice([2, 4]))
    got = lengths(rng, len(expected))
    mine = expected[int(rng.integers(count)) :: count]
    got[: len(mine)] = mine
    return got[: len(mine)]


def _twice(rng: np.random.Generator, expected: Lengths) -> Lengths:
    return np.repeat(expected, int(rng.choice([2, 4])))[: len(expected)]


def _stale(rng: np.random.Generator, expected: Lengths) -> Lengths:
    return np.where(rng.random(len(expected)) < 0.9, int(np.median(expected)), expected)


def _frame(rng: np.random.Generator, expected: Lengths) -> Lengths:
    return expected + int(rng.choice([-2, -1, 1, 2, 4, 5]))


def _unrelated(rng: np.random.Generator, expected: Lengths) -> Lengths:
    got = lengths(rng, len(expected))
    return np.where(rng.random(len(expected)) < 0.5, got, expected)


#: What was got for what was expected, by its cause.
CAUSES: dict[str, Callable[[np.random.Generator, Lengths], Lengths]] = {
    "shift": _shift,
    "foreign": _foreign,
    "decode_step": _decode,
    "retraction": _retracted,
    "chunk": _chunk,
    "limit": _limit,
    "prefix_cache": _prefix,
    "data_parallel": _data_parallel,
    "every_dump_twice": _twice,
    "repeated_dump": _stale,
    "frame": _frame,
    "permutation": lambda rng, expected: rng.permutation(expected),
    "unknown": _unrelated,
}


def observed(code: str, seed: int, count: int = 300) -> Observations:
    """A log of ``count`` samples whose mismatches have this cause."""
    rng = np.random.default_rng(seed)
    expected = lengths(rng, count)
    got = np.full(count, UNKNOWN)
    made = CAUSES[code](rng, expected)
    got[: len(made)] = made
    return observe(range(count), expected, got, code)
