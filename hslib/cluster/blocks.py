"""Rows on their way to the replicas of a cluster: largest first, in blocks. Pure decisions.

Largest first within a window, and blocks that shrink towards the end (guided self-scheduling,
Polychronopoulos and Kuck 1987): all replicas end within a small block's time of one another,
and the driver holds no more than the window.
"""

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hslib.dataset import Sample

_WINDOW_ROWS = 4096
_WINDOW_TOKENS = 1 << 26  # int32 ids and uint8 masks: 335 MB
_MOST_ROWS = 1024  # a block of very short rows


@dataclass(frozen=True)
class Block:
    """What a replica is handed at once."""

    samples: tuple[Sample, ...]
    is_suspect: bool = False  # one row that was there when replicas died: it goes by itself

    @property
    def num_tokens(self) -> int:
        return sum(sample.num_tokens for sample in self.samples)


class Blocks:
    """Cuts blocks from samples that are read as they are wanted.

    Args:
        todo_tokens: of all samples together.
        block_tokens: of a block in the middle of a job.
        least_tokens: of one at its end; below, a server would not have its requests full.
        most_deaths: of replicas that a row may be there for; the last ones by itself.
    """

    def __init__(
        self,
        samples: Iterator[Sample],
        todo_tokens: int,
        *,
        block_tokens: int,
        least_tokens: int,
        most_deaths: int,
    ) -> None:
        self._samples = samples
        self._block_tokens, self._least_tokens = block_tokens, least_tokens
        self._most_deaths = most_deaths
        self._window: list[tuple[int, int, Sample]] = []  # a heap: most tokens, then first
        self._window_tokens = 0
        self._suspects: deque[Sample] = deque()
        self._deaths: Counter[int] = Counter()
        self._left_tokens = todo_tokens  # not handed out yet

    def next(self, replicas: int, is_idle: bool) -> Block | None:
        """The next block; None when there is none for this replica now.

        Args:
            replicas: how many are at work.
            is_idle: this one holds no other block. Only then it may be given a suspect.
        """
        self._fill()
        if not self._window:
            if not (self._suspects and is_idle):
                return None
            suspect = self._suspects.popleft()
            self._left_tokens -= suspect.num_tokens
            return Block((suspect,), is_suspect=True)
        share = self._left_tokens // (2 * max(1, replicas))
        most = max(self._least_tokens, min(self._block_tokens, share))
        taken = [self._pop()]
        tokens = taken[0].num_tokens
        while self._window and len(taken) < _MOST_ROWS and tokens - self._window[0][0] <= most:
            taken.append(self._pop())
            tokens += taken[-1].num_tokens
        self._left_tokens -= tokens
        return Block(tuple(taken))

    def survive(self, block: Block, unfinished: Iterable[int]) -> list[Sample]:
        """A replica died; what of a block it had not finished is handed out again.

        A row that is there when a second replica dies goes by itself from then on, so that it
        can't take others with it.

        Returns:
            The rows that are not: a replica died of them, alone, for the last time.
        """
        left = set(unfinished)
        blamed = []
        for sample in block.samples:
            if sample.index not in left:
                continue
            self._deaths[sample.index] += 1
            deaths = self._deaths[sample.index]
            if block.is_suspect and deaths >= self._most_deaths:
                blamed.append(sample)
                continue
            self._left_tokens += sample.num_tokens
            if deaths >= max(1, self._most_deaths - 1):
                self._suspects.append(sample)
            else:
                self._push(sample)
        return blamed

    def is_empty(self) -> bool:
        """Whether every row has been handed out."""
        self._fill()
        return not self._window and not self._suspects

    def _fill(self) -> None:
        while len(self._window) < _WINDOW_ROWS and self._window_tokens < _WINDOW_TOKENS:
            sample = next(self._samples, None)
            if sample is None:
                return
            self._push(sample)

    def _push(self, sample: Sample) -> None:
        heapq.heappush(self._window, (-sample.num_tokens, sample.index, sample))
        self._window_tokens += sample.num_tokens

    def _pop(self) -> Sample:
        sample = heapq.heappop(self._window)[2]
        self._window_tokens -= sample.num_tokens
        return sample
