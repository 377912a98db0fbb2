"""Which samples a server is sent next. Decisions only: no threads, no clock of its own, no I/O.

Samples go out in the dataset's order, short ones together. One that must be tried again goes by
itself, after a pause. One that was in flight when its server went away is tried by itself too; the
last time allowed it comes after all others, with nothing else in flight. So a row that kills
servers is found, and takes no others with it.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hslib.dataset import Sample
from hslib.server import dump_bytes

MOST_STORING = 8  # requests that may be stored beside those in flight


@dataclass(eq=False)
class PendingSample:
    """A sample without an outcome yet."""

    sample: Sample
    rids: list[str] = field(default_factory=list)  # of every try; an old one may be answered late
    errors: int = 0  # tries that went wrong, and not for want of a server
    losses: int = 0  # tries whose server went away
    is_suspect: bool = False  # goes with nothing else in flight


Group = list[PendingSample]  # of one request


@dataclass
class Load:
    """What one endpoint has of a job now; only the scheduler changes the numbers.

    A request counts until it is answered, so that the server has work while dumps are stored; its
    bytes count until they are.
    """

    most_bytes: int
    most_requests: int
    held_bytes: int = 0
    in_flight: int = 0
    storing: int = 0
    has_suspect: bool = False
    is_away: bool = False
    is_over: bool = False  # given up

    def has_slot(self) -> bool:
        """Whether one more request may be sent, if its dumps fit."""
        most = requests_at_once(self.most_requests)
        is_full = self.in_flight >= self.most_requests or self.in_flight + self.storing >= most
        return not (self.is_away or self.is_over or self.has_suspect or is_full)

    def is_idle(self) -> bool:
        return not (self.in_flight or self.storing)

    def fits(self, size_bytes: int) -> bool:
        """A request larger than the whole dump directory's share goes alone."""
        return not self.held_bytes or self.held_bytes + size_bytes <= self.most_bytes


def requests_at_once(concurrency: int) -> int:
    """Requests whose dumps may lie there: in flight, and answered but not stored yet."""
    return concurrency + min(concurrency, MOST_STORING)


class Scheduler:
    """Holds the samples that wait; those in flight are the caller's until they come back.

    Args:
        samples: all of the job, read as they are wanted.
        most_samples: of one request.
        most_tokens: of one request; a longer sample goes alone.
        state_bytes: of one token.
        most_losses: servers that a sample may cost before it is blamed; two at least, since the
            last of them it must have had for itself.
    """

    def __init__(
        self,
        samples: Iterable[Sample],
        *,
        most_samples: int,
        most_tokens: int,
        state_bytes: int,
        most_losses: int,
    ) -> None:
        self._state_bytes, self._most_losses = state_bytes, most_losses
        self._groups = pack(samples, most_samples, most_tokens)
        self._first: deque[Group] = deque()  # back from a server, or looked at and too large
        self._later: list[tuple[float, int, PendingSample]] = []  # a heap by when they are due
        self._suspects: deque[PendingSample] = deque()
        self._number = itertools.count()

    def take(self, load: Load, now: float) -> Group | None:
        """The next request for an endpoint, or None when it must not or can't be given one now.

        What is too large for the endpoint's free bytes waits, and is not overtaken there.
        """
        if not load.has_slot():
            return None
        group = self._next(now)
        if group is None:
            if not (self._suspects and load.is_idle()):
                return None
            group = [self._suspects.popleft()]
            load.has_suspect = True
        elif not load.fits(self.size_bytes(group)):
            self._first.appendleft(group)
            return None
        load.in_flight += 1
        load.held_bytes += self.size_bytes(group)
        return group

    def answered(self, load: Load) -> None:
        """The server has done with a request; another may be sent while its dumps are stored."""
        load.in_flight -= 1
        load.storing += 1

    def stored(self, load: Load, group: Group) -> None:
        """A request is through: its dumps are stored, or of no use."""
        load.storing -= 1
        load.held_bytes -= self.size_bytes(group)
        load.has_suspect = False

    def _next(self, now: float) -> Group | None:
        if self._later and self._later[0][0] <= now:
            return [heapq.heappop(self._later)[2]]
        if self._first:
            return self._first.popleft()
        samples = next(self._groups, None)
        return None if samples is None else [PendingSample(sample) for sample in samples]

    def size_bytes(self, group: Group) -> int:
        """Bytes of dump directory that a request's states take."""
        tokens = sum(pending.sample.num_tokens for pending in group)
        return dump_bytes(tokens, len(group), self._state_bytes)

    def put_back(self, pending: PendingSample) -> None:
        """It is to be tried by itself, at once."""
        self._first.append([pending])

    def put_off(self, pending: PendingSample, due: float) -> None:
        """It is to be tried by itself, not before ``due``."""
        heapq.heappush(self._later, (due, next(self._number), pending))

    def lose(self, pending: PendingSample) -> bool:
        """Its server went away while it was asked for it; False when the sample is to blame."""
        pending.losses += 1
        if pending.is_suspect and pending.losses >= self._most_losses:
            return False
        pending.is_suspect = pending.losses >= max(1, self._most_losses - 1)
        if pending.is_suspect:
            self._suspects.append(pending)
        else:
            self.put_back(pending)
        return True

    def is_empty(self) -> bool:
        """Whether no sample waits, nor is to be read yet."""
        if not self._first:
            group = next(self._groups, None)
            if group is not None:
                self._first.append([PendingSample(sample) for sample in group])
        return not (self._first or self._later or self._suspects)

    def wait_s(self, now: float) -> float | None:
        """Seconds until a sample that was put off is due; None when there is none."""
        return max(0.0, self._later[0][0] - now) if self._later else None


def pack(samples: Iterable[Sample], most_samples: int, most_tokens: int) -> Iterator[list[Sample]]:
    """Group consecutive samples into requests; a long one goes alone, none is reordered."""
    group: list[Sample] = []
    tokens = 0
    for sample in samples:
        if group and (len(group) == most_samples or tokens + sample.num_tokens > most_tokens):
            yield group
            group, tokens = [], 0
        group.append(sample)
        tokens += sample.num_tokens
    if group:
        yield group
