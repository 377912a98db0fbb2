"""How fast a job is now: rates over the last minute."""

from collections import deque
from typing import NamedTuple

WINDOW_S = 60.0
_STEP_S = 0.5


class Amounts(NamedTuple):
    """What a job has done since it began, and the rates of it."""

    samples: float = 0.0
    tokens: float = 0.0
    size_bytes: float = 0.0


class Pace:
    """Counts over time; times in seconds of any clock that does not go back."""

    def __init__(self, began_at: float) -> None:
        self._began_at = began_at
        self._known = deque([(began_at, Amounts())])

    def rates(self, now: float, counts: Amounts) -> Amounts:
        """Per second, over the last :data:`WINDOW_S` or since the begin; remembers ``counts``."""
        if now - self._known[-1][0] >= _STEP_S:
            self._known.append((now, counts))
        while len(self._known) > 1 and self._known[1][0] <= now - WINDOW_S:
            self._known.popleft()
        at, before = self._known[0]
        return _per_second(counts, before, now - at)

    def overall(self, now: float, counts: Amounts) -> Amounts:
        """Per second since the begin."""
        return _per_second(counts, Amounts(), now - self._began_at)


def _per_second(after: Amounts, before: Amounts, seconds: float) -> Amounts:
    return Amounts(*((a - b) / max(seconds, 1e-9) for a, b in zip(after, before, strict=True)))
