"""What a job takes, from what is known before it starts: bytes, hours, tmpfs, bottleneck. Pure.

1 GB is 1e9 bytes, GB/s are bytes and not bits, an hour is 3,600 s. A rate is tokens per second of
one replica that captures. A replica is a server with a dump directory and a network link of its
own. Sizes are those of :mod:`hslib.store.sizes` and :func:`hslib.server.dumps.dump_bytes`; the time
is the tokens over the speed of the slowest of servers, links and store.

Not counted: the start of the servers, the end of the job when few rows are in flight, a store that
is slow with small files, and the journal (0.7 kB per sample).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hslib.errors import ParameterError
from hslib.job.scheduler import requests_at_once
from hslib.server import DUMP_SHARE, DUMP_TOKEN_BYTES, dump_bytes
from hslib.store import (
    STORED_TOKEN_BYTES,
    size_words,
    state_bytes,
    stored_bytes,
    stored_header_bytes,
)

_SHORT_FLOAT = 1e-9  # 1.2 / 0.4 is not quite 3

Bottleneck = Literal["servers", "network", "store"]


class Fact(NamedTuple):
    """A line of the table."""

    name: str
    value: str
    formula: str


@dataclass(frozen=True)
class Work:
    """What is to be extracted. ``rows`` and ``longest`` (tokens) are 0 when they are not known.

    Raises:
        ParameterError: numbers that no job has.
    """

    num_states: int
    hidden_size: int
    tokens: int
    rows: int = 0
    longest: int = 0

    def __post_init__(self) -> None:
        _require_positive(hidden_size=self.hidden_size, tokens=self.tokens)
        if self.rows < 0 or self.longest < 0:
            raise ParameterError("samples and longest can't be negative", fix="correct them")
        if self.rows > self.tokens or self.longest > self.tokens - max(self.rows - 1, 0):
            raise ParameterError(
                f"{self.rows:,} rows, the longest of {self.longest:,} tokens, do not make "
                f"{self.tokens:,} tokens",
                fix="tokens are those of all rows together, longest those of one",
            )

    @property
    def state_bytes(self) -> int:
        """Bytes of states per token."""
        return state_bytes(self.num_states, self.hidden_size)

    @property
    def store_bytes(self) -> int:
        """What the store grows by; without ``rows``, all but the files' headers."""
        return stored_bytes(self.tokens, self.rows, self.state_bytes)


@dataclass(frozen=True)
class RequestLimits:
    """How much one server is sent at once: notebook 03's parameters of the same names."""

    concurrency: int
    samples_per_request: int
    tokens_per_request: int

    def tokens(self, work: Work) -> int:
        """Tokens of the largest request: the longest row alone, or short ones together."""
        together = min(self.tokens_per_request, self.samples_per_request * work.longest)
        return max(work.longest, together)

    def tmpfs_bytes(self, work: Work) -> int:
        """Free space with which no request waits for room in the dump directory."""
        size = dump_bytes(self.tokens(work), self.samples_per_request, work.state_bytes)
        return math.ceil(requests_at_once(self.concurrency) * size / DUMP_SHARE)


@dataclass(frozen=True)
class Forecast:
    """A job on ``replicas`` servers; rates that are not known are infinite.

    Args:
        rate: tokens per second that one replica captures.
        store_rate: bytes per second that the store takes from all replicas together.
        link_rate: bytes per second that one replica can send to the store.

    Raises:
        ParameterError: a rate or a number of replicas that is not positive.
    """

    work: Work
    limits: RequestLimits
    rate: float
    replicas: int = 1
    store_rate: float = math.inf
    link_rate: float = math.inf

    def __post_init__(self) -> None:
        _require_positive(
            rate=self.rate,
            replicas=self.replicas,
            store_gbps=self.store_rate,
            network_gbps=self.link_rate,
            concurrency=self.limits.concurrency,
        )

    @property
    def bytes_per_token(self) -> float:
        """As stored: states, ids, mask, and its share of the header."""
        return self.work.store_bytes / self.work.tokens

    @property
    def pace(self) -> float:
        """Tokens per second of one replica on its own link."""
        return min(self.rate, self.link_rate / self.bytes_per_token)

    @property
    def replica_bytes_per_s(self) -> float:
        """What one replica sends to the store when nothing keeps it waiting."""
        return self.pace * self.bytes_per_token

    @property
    def speed(self) -> float:
        """Tokens per second of all replicas together."""
        return min(self.replicas * self.pace, self.store_rate / self.bytes_per_token)

    @property
    def hours(self) -> float:
        return self.work.tokens / self.speed / 3600

    @property
    def bottleneck(self) -> Bottleneck:
        """What must get faster for the job to take less time."""
        if self.replicas * self.replica_bytes_per_s > self.store_rate * (1 + _SHORT_FLOAT):
            return "store"
        return "servers" if self.pace == self.rate else "network"

    def facts(self) -> Iterator[Fact]:
        """The table: a fact per line, with its unit and the formula in words and numbers."""
        work, replicas = self.work, count(self.replicas, "replica")
        yield Fact(
            "states of a token",
            f"{work.state_bytes:,} B",
            f"{work.num_states} states x {work.hidden_size:,} x 2 bytes of bfloat16",
        )
        yield Fact("store grows by", size_words(work.store_bytes), self._store_formula())
        yield Fact(
            "one replica writes",
            gb(self.replica_bytes_per_s),
            f"{self.pace:,.0f} tokens/s x {self.bytes_per_token:,.0f} B, over its link to the "
            "store, which must take as much",
        )
        yield Fact(
            f"{replicas} would write",
            gb(self.replicas * self.replica_bytes_per_s),
            f"{self.replicas} x {gb(self.replica_bytes_per_s)}; the store takes "
            + ("what --store-gbps says" if math.isinf(self.store_rate) else gb(self.store_rate)),
        )
        yield Fact(
            f"time of {replicas}",
            f"{self.hours:,.2f} h ({self.hours * 60:,.0f} min)",
            f"{work.tokens:,} tokens / {self.speed:,.0f} tokens/s",
        )
        yield from self._tmpfs_facts()

    def _store_formula(self) -> str:
        work = self.work
        formula = f"{work.tokens:,} tokens x ({work.state_bytes:,} + {STORED_TOKEN_BYTES} B)"
        if not work.rows:
            return f"{formula}; the files' headers come on top (--samples)"
        header = stored_header_bytes(work.tokens / work.rows, work.state_bytes)
        return f"{formula} + {work.rows:,} files x {header:,} B of header"

    def _tmpfs_facts(self) -> Iterator[Fact]:
        work, limits = self.work, self.limits
        if not work.longest:
            yield Fact("tmpfs of a replica", "not known", "say how long rows get (--longest)")
            return
        yield Fact(
            "tmpfs of a replica",
            size_words(limits.tmpfs_bytes(work)),
            f"{requests_at_once(limits.concurrency)} requests at once x "
            f"{limits.tokens(work):,} tokens x ({work.state_bytes:,} + {DUMP_TOKEN_BYTES} B) / "
            f"{DUMP_SHARE}, so that none waits for room",
        )
        yield Fact(
            "tmpfs at the least",
            size_words(dump_bytes(work.longest, 1, work.state_bytes)),
            f"the longest row alone, {work.longest:,} tokens; the others wait meanwhile",
        )

    def sentence(self) -> str:
        """The bottleneck in words."""
        asked = f"{count(self.replicas, 'replica')} would write "
        asked += gb(self.replicas * self.replica_bytes_per_s)
        if self.bottleneck == "store":
            busy = self.speed / (self.replicas * self.pace)
            return (
                f"The store is the bottleneck: {asked}, it takes {gb(self.store_rate)}; "
                f"the servers work {busy:.0%} of the time."
            )
        if self.bottleneck == "network":
            return (
                f"The network link is the bottleneck: it carries {self.pace:,.0f} of the "
                f"{self.rate:,.0f} tokens/s that a replica makes."
            )
        return f"The servers are the bottleneck: {asked}, and nothing keeps them waiting."


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        may_be_unknown = name.endswith("_gbps")
        if not value > 0 or (math.isinf(value) and not may_be_unknown):
            raise ParameterError(f"{name} is {value:g}", fix="give a number above 0")


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def gb(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:,.3g} GB/s"
