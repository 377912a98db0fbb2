"""How big, how long, how many: what a job takes, from numbers known before anything starts. Pure.

Units: 1 GB is 1e9 bytes, GB/s never Gbit/s, an hour 3,600 s; a rate is tokens a second of one
replica that captures (``speed`` of a measured run, not of one that only serves). A replica is a
server with its own dump directory and its own network link.

================  ====================================================  ========================
bytes a token     (aux layers + final) x hidden size x 2 of bfloat16    hs_dump/dump_file.py
a sample's file   those + 9 a token (int64 id, uint8 mask) + a header   samplefile, tensorfile
a dump            those + 4 a token (int32 id) + 512                    dump_file.state_bytes
at once           ``concurrency`` requests in flight, up to 8 stored    extract, feed.Budget
dump directory    all that is at once / 0.8, the share that is used     lane, preflight
time              tokens / the slowest of servers, links and store      a pipeline's slowest part
worth having      floor(store rate / bytes a second of one replica)     one more would wait
================  ====================================================  ========================

Not in it: starting the servers, the tail when the last rows are in flight, a store that tires of
small files before it tires of bytes, and the journal (0.7 kB a sample).

Against what is known (``tests/job/test_forecast.py``): the demo's store and the benchmarks'
stores, to the header of a file. The case study (37,312 samples, 57,344 B a token) contradicts
itself, and no formula mends that:

- 133 GB are 62 tokens a sample, 3.5 to 4 TB are 1,636 to 1,869. The 133 GB are 0.3 GB / 84 samples,
  but its log says 20 extracted, 84 in total: if the 0.3 GB are those of the 20, they make 560 GB.
- The job has one number of tokens. 1,281 tok/s for 782 min are 60 million (3.45 TB), 2,689 for
  471 min 76 million (4.36 TB): 3.5 to 4 TB lie between, but no one number fits both ends.
- The minutes are samples / samples a second: 471 is 1.32 a second; 0.79 gives 787, not 782.
- 11,109 tok/s at 1.09 samples/s, in the broken run's log, are 10,192 tokens a sample.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hslib.errors import ParameterError
from hslib.job.scheduler import requests_at_once
from hslib.server.dumps import DUMP_SHARE, DUMP_TOKEN_BYTES, dump_bytes
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
        """Of one token."""
        return state_bytes(self.num_states, self.hidden_size)

    @property
    def store_bytes(self) -> int:
        """What the store grows by; without ``rows``, all but the files' headers."""
        return stored_bytes(self.tokens, self.rows, self.state_bytes)


@dataclass(frozen=True)
class Request:
    """What one server is asked for at once: notebook 03's parameters of the same names."""

    concurrency: int
    samples_per_request: int
    tokens_per_request: int

    def tmpfs_bytes(self, work: Work) -> int:
        """Free space under which no request waits for room in the dump directory."""
        size = dump_bytes(self.tokens(work), self.samples_per_request, work.state_bytes)
        return math.ceil(requests_at_once(self.concurrency) * size / DUMP_SHARE)

    def tokens(self, work: Work) -> int:
        """Tokens of the largest request: the longest row alone, or short ones together."""
        together = min(self.tokens_per_request, self.samples_per_request * work.longest)
        return max(work.longest, together)


@dataclass(frozen=True)
class Sizing:
    """A job on ``replicas`` servers; rates that are not known are infinite.

    Args:
        rate: tokens a second that one replica captures.
        store_rate: bytes a second that the store takes, from all replicas together.
        link_rate: bytes a second that one replica can send there.

    Raises:
        ParameterError: a rate or a number of replicas that is not positive.
    """

    work: Work
    request: Request
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
            concurrency=self.request.concurrency,
        )

    @property
    def bytes_per_token(self) -> float:
        """As stored: states, ids, mask, and its share of the header."""
        return self.work.store_bytes / self.work.tokens

    @property
    def pace(self) -> float:
        """Tokens a second of one replica on its own link."""
        return min(self.rate, self.link_rate / self.bytes_per_token)

    @property
    def replica_bytes_per_s(self) -> float:
        """What one replica sends to the store when nothing keeps it waiting."""
        return self.pace * self.bytes_per_token

    def speed(self, replicas: int) -> float:
        """Tokens a second of so many replicas together."""
        return min(replicas * self.pace, self.store_rate / self.bytes_per_token)

    def hours(self, replicas: int) -> float:
        return self.work.tokens / self.speed(replicas) / 3600

    @property
    def most_replicas(self) -> int | None:
        """So many the store keeps up with, at least one; None when nothing is said of it."""
        if math.isinf(self.store_rate):
            return None
        most = self.store_rate / self.replica_bytes_per_s + _SHORT_FLOAT
        return max(1, int(min(most, 1e9)))

    @property
    def bottleneck(self) -> Bottleneck:
        """What a faster one of would shorten the job."""
        if self.replicas * self.replica_bytes_per_s > self.store_rate * (1 + _SHORT_FLOAT):
            return "store"
        return "servers" if self.pace == self.rate else "network"

    def facts(self) -> Iterator[Fact]:
        """The table: a fact a line, with its unit and the formula in words and numbers."""
        work, replicas = self.work, self.replicas
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
            f"{count(replicas, 'replica')} would write",
            gb(replicas * self.replica_bytes_per_s),
            f"{replicas} x {gb(self.replica_bytes_per_s)}; the store takes "
            + ("what --store-gbps says" if math.isinf(self.store_rate) else gb(self.store_rate)),
        )
        yield Fact(
            f"time of {count(replicas, 'replica')}",
            time_words(self.hours(replicas)),
            f"{work.tokens:,} tokens / {self.speed(replicas):,.0f} tokens/s",
        )
        yield from self._tmpfs_facts()
        if self.most_replicas is not None:
            yield Fact(
                "replicas worth having",
                f"{self.most_replicas:,}",
                f"floor of {gb(self.store_rate)} of the store / {gb(self.replica_bytes_per_s)} "
                "of a replica, at least 1",
            )
            yield Fact(
                "time of these",
                time_words(self.hours(self.most_replicas)),
                f"{work.tokens:,} tokens / {self.speed(self.most_replicas):,.0f} tokens/s",
            )

    def _store_formula(self) -> str:
        work = self.work
        formula = f"{work.tokens:,} tokens x ({work.state_bytes:,} + {STORED_TOKEN_BYTES} B)"
        if not work.rows:
            return f"{formula}; the files' headers come on top (--samples)"
        header = stored_header_bytes(work.tokens / work.rows, work.state_bytes)
        return f"{formula} + {work.rows:,} files x {header:,} B of header"

    def _tmpfs_facts(self) -> Iterator[Fact]:
        work, request = self.work, self.request
        if not work.longest:
            yield Fact("tmpfs of a replica", "not known", "say how long rows get (--longest)")
            return
        yield Fact(
            "tmpfs of a replica",
            size_words(request.tmpfs_bytes(work)),
            f"{requests_at_once(request.concurrency)} requests at once x "
            f"{request.tokens(work):,} tokens x ({work.state_bytes:,} + {DUMP_TOKEN_BYTES} B) / "
            f"{DUMP_SHARE}, so that none waits for room",
        )
        yield Fact(
            "tmpfs at the least",
            size_words(dump_bytes(work.longest, 1, work.state_bytes)),
            f"the longest row alone, {work.longest:,} tokens; the others wait meanwhile",
        )

    def sentences(self) -> Iterator[str]:
        """The bottleneck, and how many replicas are worth having."""
        asked = f"{count(self.replicas, 'replica')} would write "
        asked += gb(self.replicas * self.replica_bytes_per_s)
        if self.bottleneck == "store":
            busy = self.speed(self.replicas) / (self.replicas * self.pace)
            yield (
                f"The store is the bottleneck: {asked}, it takes {gb(self.store_rate)}; "
                f"the servers work {busy:.0%} of the time."
            )
        elif self.bottleneck == "network":
            yield (
                f"The network link is the bottleneck: it carries {self.pace:,.0f} of the "
                f"{self.rate:,.0f} tokens/s that a replica makes."
            )
        else:
            yield f"The servers are the bottleneck: {asked}, and nothing keeps them waiting."
        if self.most_replicas is None:
            yield "How many are worth having depends on the store: --store-gbps."
        elif self.replica_bytes_per_s > self.store_rate:
            yield "More than 1 replica is not worth having: even one waits for the store."
        else:
            yield f"Up to {count(self.most_replicas, 'replica')} each bring their full rate."


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        may_be_unknown = name.endswith("_gbps")
        if not value > 0 or (math.isinf(value) and not may_be_unknown):
            raise ParameterError(f"{name} is {value:g}", fix="give a number above 0")


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def gb(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:,.3g} GB/s"


def time_words(hours: float) -> str:
    return f"{hours:,.2f} h ({hours * 60:,.0f} min)"
