"""Logs of jobs whose truth is known: who is misfiled, by which lag, and what is unrelated.

Unlike :mod:`make.logs`, of any size and of lengths that prove little: ten samples, a few tokens
apart, or of four lengths only.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hslib.diagnosis.filing.observations import Observations, read_log
from hslib.diagnosis.rows import DatasetRows

NOBODY = -1
_SYSTEM = 16  # ids that all rows begin with


@dataclass(frozen=True, eq=False)
class JobLog:
    """``expected, got`` int64 [N] tokens; ``sources`` int64 [N]: whose dump a sample got.

    ``causes``: those that a diagnosis may name beside "unknown". ``rows``: the dataset, or None.
    """

    expected: np.ndarray
    got: np.ndarray
    sources: np.ndarray
    causes: frozenset[str]
    rows: DatasetRows | None

    @property
    def text(self) -> str:
        """As the case study's client wrote it: a line for each length that differs."""
        lines = [f"Loaded {len(self.expected)} samples", "Server is ready!"]
        for index, (wanted, came) in enumerate(zip(self.expected, self.got, strict=True)):
            if wanted != came:
                cut = ", truncating" if came > wanted else ""
                lines.append(f"WARNING sample {index}: got {came} tokens, expected {wanted}{cut}")
        return "\n".join(lines) + "\n"

    @property
    def observed(self) -> Observations:
        return read_log(self.text)


def narrow(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.clip(rng.normal(40, rng.integers(3, 15), count), 5, 90).astype(np.int64)


def wide(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.clip(rng.lognormal(6.5, 1.0, count), 9, 9000).astype(np.int64)


def tied(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.asarray(rng.choice([128, 256, 512, 1024][: rng.integers(2, 5)], count))


def equal_neighbours(rng: np.random.Generator, count: int) -> np.ndarray:
    found = wide(rng, count)
    for at in np.flatnonzero(rng.random(count) < 0.3):
        found[at] = found[at - 1]
    return found


def capped(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.minimum(wide(rng, count), 700)


def ascending(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.sort(wide(rng, count))


def alike_in_blocks(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.repeat(wide(rng, count), 8)[:count]


def periodic(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.resize(wide(rng, int(rng.integers(5, 12))), count)


LENGTHS = (narrow, wide, tied, equal_neighbours, capped)
Lengths = Callable[[np.random.Generator, int], np.ndarray]
Made = tuple[np.ndarray, np.ndarray, frozenset[str]]  # got, sources, causes


def constant(rng: np.random.Generator, expected: np.ndarray, draw: Lengths) -> Made:
    """A lag of one to nine; old dumps come first."""
    lag = int(rng.integers(1, 10))
    sources = np.maximum(np.arange(len(expected)) - lag, NOBODY)
    got = np.where(sources < 0, draw(rng, len(expected)), expected[sources])
    return got, sources, frozenset({"shift"})


def growing(rng: np.random.Generator, expected: np.ndarray, draw: Lengths) -> Made:
    """Foreign dumps in between, each of which makes the lag grow by one."""
    share = float(rng.choice([0.01, 0.03, 0.1]))
    stream = [NOBODY] * int(rng.integers(0, 3))
    for index in range(len(expected)):
        stream += [NOBODY] * int(rng.random() < share)
        stream.append(index)
    sources = np.array(stream[: len(expected)])
    short = rng.choice([1, 3], len(expected))
    foreign = short if rng.random() < 0.7 else draw(rng, len(expected))
    got = np.where(sources < 0, foreign, expected[sources])
    return got, sources, frozenset({"shift", "foreign"})


def noise(rng: np.random.Generator, expected: np.ndarray, draw: Lengths) -> Made:
    """Unrelated lengths, or another tokenizer's."""
    own = np.arange(len(expected))
    kind = rng.choice(["unrelated", "half", "frame", "drift", "some"])
    if kind == "frame":
        return expected + rng.choice([-2, -1, 1, 2, 5]), own, frozenset({"frame"})
    if kind == "drift":
        longer = expected * rng.normal(1.04, 0.02, len(expected))
        return np.maximum(longer.astype(np.int64), 1), own, frozenset()
    if kind == "some":
        return expected + rng.choice([0, 1, 2, 3], len(expected)), own, frozenset({"frame"})
    foreign = (rng.random(len(expected)) < 0.5) | (kind == "unrelated")
    got = np.where(foreign, draw(rng, len(expected)), expected)
    return got, np.where(foreign, NOBODY, own), frozenset()


def restarted(rng: np.random.Generator, expected: np.ndarray, draw: Lengths) -> Made:
    """A lag, then none after a restart in the middle, then another."""
    own = np.arange(len(expected))
    first, second = np.sort(rng.integers(0, len(expected), 2))
    lags = np.where(own < first, 3, np.where(own < second, 0, rng.integers(1, 6)))
    return _filed(expected, own - lags, draw(rng, len(own)))


def with_gaps(rng: np.random.Generator, expected: np.ndarray, draw: Lengths) -> Made:
    """Dumps that never came: the lag becomes negative."""
    stream = np.flatnonzero(rng.random(2 * len(expected)) > 0.02)
    return _filed(expected, stream[: len(expected)], draw(rng, len(expected)))


def two_clients(rng: np.random.Generator, expected: np.ndarray, draw: Lengths) -> Made:
    """In turns, each with a lag of its own."""
    own = np.arange(len(expected))
    return _filed(expected, own - np.where(own % 2, 2, 6), draw(rng, len(own)))


def _filed(expected: np.ndarray, sources: np.ndarray, others: np.ndarray) -> Made:
    inside = (sources >= 0) & (sources < len(expected))
    got = np.where(inside, expected[sources.clip(0, len(expected) - 1)], others)
    return got, np.where(inside, sources, NOBODY), frozenset({"shift", "foreign"})


KINDS = {"constant": constant, "growing": growing, "noise": noise}
ODD_KINDS = {**KINDS, "restarted": restarted, "with_gaps": with_gaps, "two_clients": two_clients}
ODD_LENGTHS = (*LENGTHS, ascending, alike_in_blocks, periodic)


def job_log(kind: str, seed: int, lengths: tuple[Lengths, ...] = LENGTHS) -> JobLog:
    """The ``seed``-th log of a kind: 10 to 2,000 samples; every other one with its dataset."""
    rng = np.random.default_rng([seed, sorted(ODD_KINDS).index(kind)])
    count = int(np.exp(rng.uniform(np.log(10), np.log(2001))))
    draw = lengths[seed % len(lengths)]
    expected = draw(rng, count)
    got, sources, causes = ODD_KINDS[kind](rng, expected, draw)
    rows = rows_of(rng, expected) if seed // len(lengths) % 2 else None
    return JobLog(expected, got, sources, causes, rows)


def rows_of(rng: np.random.Generator, lengths: np.ndarray) -> DatasetRows:
    """Random ids; all rows begin with the same system prompt."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = rng.integers(5, 30_000, offsets[-1]).astype("<i4")
    for start, length in zip(offsets, lengths, strict=False):
        ids[start : start + min(_SYSTEM, length)] = np.arange(min(_SYSTEM, length))
    return DatasetRows(lengths, ids, offsets)
