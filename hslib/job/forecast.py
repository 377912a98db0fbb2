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
from typing import Literal

from hslib.errors import ParameterError
from hslib.job.scheduler import requests_at_once
from hslib.parameters import ExtractionParameters
from hslib.server import DUMP_SHARE, DUMP_TOKEN_BYTES, dump_bytes
from hslib.store import (
    CODECS,
    STORED_TOKEN_BYTES,
    size_words,
    state_bytes,
    stored_bytes,
    stored_header_bytes,
)

_SHORT_FLOAT = 1e-9  # 1.2 / 0.4 is not quite 3

Bottleneck = Literal["servers", "network", "store"]


@dataclass(frozen=True)
class Forecast:
    """A job on ``replicas`` servers. What is not known is 0, but for rates: they are infinite.

    Args:
        longest: tokens of the longest row.
        rate: tokens per second that one replica captures.
        job: how much one server is sent at once.
        store_rate: bytes per second that the store takes from all replicas together.
        link_rate: bytes per second that one replica can send to the store.

    Raises:
        ParameterError: numbers that no job has.
    """

    num_states: int
    hidden_size: int
    tokens: int
    rate: float
    job: ExtractionParameters
    rows: int = 0
    longest: int = 0
    replicas: int = 1
    store_rate: float = math.inf
    link_rate: float = math.inf

    def __post_init__(self) -> None:
        known = {
            name: getattr(self, name) for name in ("hidden_size", "tokens", "rate", "replicas")
        }
        limits = {"store_gbps": self.store_rate, "network_gbps": self.link_rate}
        for name, value in (known | limits).items():
            if not value > 0 or (math.isinf(value) and name in known):
                raise ParameterError(f"{name} is {value:g}", fix="give a number above 0")
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
    def stored_state_bytes(self) -> float:
        """The same in the store: as ``job.encoding`` keeps them, about so for ``lossless``."""
        share = CODECS[self.job.encoding].share(self.num_states, self.hidden_size)
        return self.state_bytes * share

    @property
    def store_bytes(self) -> int:
        """What the store grows by; without ``rows``, all but the files' headers."""
        return stored_bytes(self.tokens, self.rows, self.stored_state_bytes)

    @property
    def request_tokens(self) -> int:
        """Tokens of the largest request: the longest row alone, or short ones together."""
        together = min(self.job.tokens_per_request, self.job.samples_per_request * self.longest)
        return max(self.longest, together)

    @property
    def tmpfs_bytes(self) -> int:
        """Free space with which no request waits for room in the dump directory."""
        size = dump_bytes(self.request_tokens, self.job.samples_per_request, self.state_bytes)
        return math.ceil(requests_at_once(self.job.concurrency) * size / DUMP_SHARE)

    @property
    def bytes_per_token(self) -> float:
        """As stored: states, ids, mask, and its share of the header."""
        return self.store_bytes / self.tokens

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
        return self.tokens / self.speed / 3600

    @property
    def bottleneck(self) -> Bottleneck:
        """What must get faster for the job to take less time."""
        if self.replicas * self.replica_bytes_per_s > self.store_rate * (1 + _SHORT_FLOAT):
            return "store"
        return "servers" if self.pace == self.rate else "network"

    def facts(self) -> Iterator[tuple[str, str, str]]:
        """The table: name, value with its unit, and the formula in words and numbers."""
        replicas = count(self.replicas, "replica")
        yield (
            "states of a token",
            f"{self.state_bytes:,} B",
            f"{self.num_states} states x {self.hidden_size:,} x 2 bytes of bfloat16",
        )
        yield "store grows by", size_words(self.store_bytes), self._store_formula()
        yield (
            "one replica writes",
            gb(self.replica_bytes_per_s),
            f"{self.pace:,.0f} tokens/s x {self.bytes_per_token:,.0f} B, over its link to the "
            "store, which must take as much",
        )
        yield (
            f"{replicas} would write",
            gb(self.replicas * self.replica_bytes_per_s),
            f"{self.replicas} x {gb(self.replica_bytes_per_s)}; the store takes "
            + ("what --store-gbps says" if math.isinf(self.store_rate) else gb(self.store_rate)),
        )
        yield (
            f"time of {replicas}",
            f"{self.hours:,.2f} h ({self.hours * 60:,.0f} min)",
            f"{self.tokens:,} tokens / {self.speed:,.0f} tokens/s",
        )
        if not self.longest:
            yield "tmpfs of a replica", "not known", "say how long rows get (--longest)"
            return
        yield (
            "tmpfs of a replica",
            size_words(self.tmpfs_bytes),
            f"{self._requests_words()} x {self.request_tokens:,} tokens x "
            f"({self.state_bytes:,} + {DUMP_TOKEN_BYTES} B) / {DUMP_SHARE}, so that "
            "none waits for room",
        )
        yield (
            "tmpfs at the least",
            size_words(dump_bytes(self.longest, 1, self.state_bytes)),
            f"the longest row alone, {self.longest:,} tokens; the others wait meanwhile",
        )

    def _requests_words(self) -> str:
        in_flight = self.job.concurrency
        storing = requests_at_once(in_flight) - in_flight
        return f"({in_flight} requests in flight + {storing} answered and being stored)"

    def _store_formula(self) -> str:
        states = f"{self.stored_state_bytes:,.0f}"
        if self.job.encoding != "plain":
            states += f" in {self.job.encoding}"
        formula = f"{self.tokens:,} tokens x ({states} + {STORED_TOKEN_BYTES} B)"
        if not self.rows:
            return f"{formula}; the files' headers come on top (--samples)"
        header = stored_header_bytes(self.tokens / self.rows, self.stored_state_bytes)
        return f"{formula} + {self.rows:,} files x {header:,} B of header"

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


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def gb(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:,.3g} GB/s"
