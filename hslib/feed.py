"""Samples on their way to the workers: in order, grouped into requests, within byte budgets."""

import threading
from collections import deque
from collections.abc import Iterator

from hslib.dataset import Dataset, Rejection, Sample
from hslib.errors import DatasetError
from hslib.job import Job
from hslib.plan import pack

_ID_BYTES = 4  # int32, beside the states of each token
_DUMP_OVERHEAD_BYTES = 512  # header and small files, as the plugin counts them


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
    """Hands out groups of samples in dataset order.

    Whoever asks takes the next group and waits for room in its own server's budget before
    another worker of that server may take one, so a large sample is not overtaken there, and
    a server that is slow does not hold up the others. Groups that come back, because their
    server went away, go first.
    """

    def __init__(self, job: Job, most_bytes: int) -> None:
        """``most_bytes``: what one request may need, so that its dumps fit side by side."""
        self._wanted = {row.index: row for row in job.plan.todo}
        self._bytes_per_token = job.plan.state_bytes_per_token + _ID_BYTES
        single = job.parameters.scan_scope == "directory"
        self._groups = pack(
            self._samples(job.dataset),
            1 if single else job.parameters.samples_per_request,
            min(job.parameters.tokens_per_request, most_bytes // self._bytes_per_token),
        )
        self._returned: deque[list[Sample]] = deque()
        self._in_flight = 0
        self._order, self._changed = threading.Lock(), threading.Condition()
        self.closed = False

    def _samples(self, dataset: Dataset) -> Iterator[Sample]:
        for row in dataset:
            if isinstance(row, Rejection) or row.index not in self._wanted:
                continue
            if row.digest != self._wanted[row.index].digest:
                raise DatasetError(
                    f"row {row.index} changed while the job ran", path=str(dataset.path)
                )
            yield row

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
        """Wait while the last groups are in flight: one of them may come back."""
        while not self.closed:
            if self._returned:
                return self._returned.popleft()
            group = next(self._groups, None)
            if group is not None:
                return group
            with self._changed:
                if not self._in_flight and not self._returned:
                    return None
                self._changed.wait(0.2)
        return None

    def size_bytes(self, group: list[Sample]) -> int:
        """Bytes of dump directory that the group's states take."""
        tokens = sum(sample.num_tokens for sample in group)
        return tokens * self._bytes_per_token + len(group) * _DUMP_OVERHEAD_BYTES

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
            self._returned.extend([sample] for sample in unfinished)
            self._changed.notify_all()

    def close(self) -> None:
        """Hand out nothing more; what is in flight goes on."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
