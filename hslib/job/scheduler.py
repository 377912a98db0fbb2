"""Samples on their way to the workers: in order, grouped into requests, within byte budgets."""

import threading
from collections import deque
from collections.abc import Iterable, Iterator

from hslib.dataset import Sample
from hslib.job.plan import pack
from hslib.parameters import ExtractionParameters
from hslib.server.dumps import dump_bytes


class Budget:
    """What one server may be asked for at once: requests, and bytes of its dump directory.

    A request counts until it is answered, so that the server has work while its dumps are
    stored; its bytes count until they are. ``turn`` is held by the one worker that has taken a
    group and waits for room.
    """

    def __init__(self, limit_bytes: int, most_requests: int) -> None:
        self.limit_bytes, self.held_bytes = limit_bytes, 0
        self.most_requests, self.unanswered = most_requests, set[int]()
        self.is_away = False  # whoever has noticed waits for the server; nobody else asks it
        self.is_over = False  # it was given up
        self.turn = threading.Lock()

    def fits(self, size_bytes: int) -> bool:
        """A request larger than the whole budget goes alone."""
        return not self.held_bytes or self.held_bytes + size_bytes <= self.limit_bytes

    def is_busy(self) -> bool:
        """As many requests are unanswered as may be, or the server is away."""
        return self.is_away or len(self.unanswered) >= self.most_requests


class Feed:
    """Hands out groups of samples in the order in which they come.

    Whoever asks takes the next group and waits for room in its own server's budget before
    another worker of that server may take one, so a large sample is not overtaken there, and
    a server that is slow does not hold up the others. Groups that come back, because their
    server went away, go first.
    """

    def __init__(
        self,
        parameters: ExtractionParameters,
        state_bytes_per_token: int,
        most_bytes: int,
        samples: Iterable[Sample] | None = None,
    ) -> None:
        """
        Args:
            most_bytes: what one request may need, so that its dumps fit side by side.
            samples: all there will be, read as they are wanted; None = they come by :meth:`put`,
                until :meth:`finish`.
        """
        self._state_bytes = state_bytes_per_token
        single = parameters.scan_scope == "directory"
        self._most_samples = 1 if single else parameters.samples_per_request
        self._most_tokens = min(
            parameters.tokens_per_request, most_bytes // dump_bytes(1, 0, self._state_bytes)
        )
        self._groups = self._pack(samples or ())
        self._waiting: deque[list[Sample]] = deque()
        self._expects_more = samples is None
        self._in_flight = 0
        self._order, self._changed = threading.Lock(), threading.Condition()
        self.closed = False

    def _pack(self, samples: Iterable[Sample]) -> Iterator[list[Sample]]:
        return pack(samples, self._most_samples, self._most_tokens)

    def put(self, samples: Iterable[Sample]) -> None:
        """More to hand out."""
        with self._changed:
            self._waiting.extend(self._pack(samples))
            self._changed.notify_all()

    def finish(self) -> None:
        """Nothing more will be put; who asks is told so when all is done."""
        with self._changed:
            self._expects_more = False
            self._changed.notify_all()

    def next(self, budget: Budget) -> list[Sample] | None:
        """The next group, counted against ``budget``; None when there will be none any more."""
        with budget.turn:
            # before a group is taken: a server that hangs must not sit on more than it was asked
            with self._changed:
                while budget.is_busy() and not (self.closed or budget.is_over):
                    self._changed.wait(1.0)
            if budget.is_over:
                return None
            with self._order:
                group = self._take()
            if group is None:
                return None
            size = self.size_bytes(group)
            with self._changed:
                while not budget.fits(size) and not self.closed:
                    self._changed.wait(1.0)
                if self.closed:
                    return None
                budget.held_bytes += size
                budget.unanswered.add(id(group))
                self._in_flight += 1
            return group

    def _take(self) -> list[Sample] | None:
        """Wait while groups are in flight, one of which may come back, or more will be put."""
        while not self.closed:
            if self._waiting:
                return self._waiting.popleft()
            group = next(self._groups, None)
            if group is not None:
                return group
            with self._changed:
                if not (self._in_flight or self._waiting or self._expects_more):
                    return None
                if not self._waiting:
                    self._changed.wait(0.2)
        return None

    def size_bytes(self, group: list[Sample]) -> int:
        """Bytes of dump directory that the group's states take."""
        tokens = sum(sample.num_tokens for sample in group)
        return dump_bytes(tokens, len(group), self._state_bytes)

    def answered(self, group: list[Sample], budget: Budget) -> None:
        """The server has done with the group's request; another may be sent."""
        with self._changed:
            budget.unanswered.discard(id(group))
            self._changed.notify_all()

    def resume(self, budget: Budget, give_up: bool = False) -> None:
        """A server that was away is back, or was given up."""
        with self._changed:
            budget.is_away, budget.is_over = False, give_up
            self._changed.notify_all()

    def release(self, group: list[Sample], budget: Budget, unfinished: list[Sample]) -> None:
        """A group is through; ``unfinished`` of it, whose server is away, go to who asks next."""
        with self._changed:
            budget.is_away |= bool(unfinished)
            budget.held_bytes -= self.size_bytes(group)
            budget.unanswered.discard(id(group))
            self._in_flight -= 1
            # one by one: company must not hide which of them its server can't survive
            self._waiting.extendleft([sample] for sample in reversed(unfinished))
            self._changed.notify_all()

    def close(self) -> None:
        """Hand out nothing more; what is in flight goes on."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
