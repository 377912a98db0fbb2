"""Samples on their way to the workers: in order, grouped into requests, within a byte budget."""

import threading
from collections.abc import Iterator

from hslib.dataset import Dataset, Rejection, Sample
from hslib.errors import DatasetError
from hslib.job import Job
from hslib.plan import pack


class Feed:
    """Hands out groups of samples in dataset order, within a byte budget.

    One lock around both, so a large sample waits its turn and nothing overtakes it.
    """

    def __init__(self, job: Job, budget_bytes: int) -> None:
        self._plan = job.plan
        self._wanted = {row.index: row for row in job.plan.todo}
        single = job.parameters.scan_scope == "directory"
        self._groups = pack(
            self._samples(job.dataset),
            1 if single else job.parameters.samples_per_request,
            job.parameters.tokens_per_request,
        )
        self._budget_bytes, self._held = budget_bytes, 0
        self._order, self._changed = threading.Lock(), threading.Condition()
        self._closed = False

    def _samples(self, dataset: Dataset) -> Iterator[Sample]:
        for row in dataset:
            if isinstance(row, Rejection) or row.index not in self._wanted:
                continue
            if row.digest != self._wanted[row.index].digest:
                raise DatasetError(
                    f"row {row.index} changed while the job ran", path=str(dataset.path)
                )
            yield row

    def next(self) -> list[Sample] | None:
        """The next group, when its bytes fit; None when there is none or the feed is closed."""
        with self._order:
            group = None if self._closed else next(self._groups, None)
            if group is None:
                return None
            size = self.size_bytes(group)
            with self._changed:
                # a group larger than the whole budget goes alone
                while self._held and self._held + size > self._budget_bytes and not self._closed:
                    self._changed.wait(1.0)
                if self._closed:
                    return None
                self._held += size
            return group

    def size_bytes(self, group: list[Sample]) -> int:
        """Bytes of dump directory that the group's states take."""
        return sum(sample.num_tokens for sample in group) * self._plan.state_bytes_per_token

    def release(self, group: list[Sample]) -> None:
        with self._changed:
            self._held -= self.size_bytes(group)
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Hand out nothing more; what is in flight goes on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
