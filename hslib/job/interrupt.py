"""Interrupts counted instead of raised, while a job runs.

A ``KeyboardInterrupt`` is raised wherever the main thread happens to be, and lost if that is a
finalizer that the garbage collector calls. SIGTERM (Slurm, Kubernetes, a kernel's shutdown) would
leave the job's last word unwritten.
"""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

_FINISH_S = 10.0  # after a SIGTERM; Slurm and Kubernetes kill after 30 s


class Interrupts:
    """A context manager; :attr:`count` is how many there were. Of the main thread only.

    A process that was started to ignore them, as a shell's background job, goes on to. At the end a
    SIGTERM does what it would have done at once.

    Args:
        notify: called at each; it must be safe in a signal handler.
    """

    def __init__(self, notify: Callable[[], None] = lambda: None) -> None:
        self.count, self.notify = 0, notify
        self._terminated_at: float | None = None
        self._before: dict[int, Any] = {}

    @property
    def is_urgent(self) -> bool:
        """Whether what is in flight can't be waited for: the second one, or a late SIGTERM."""
        at = self._terminated_at
        return self.count > 1 or (at is not None and time.monotonic() - at > _FINISH_S)

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._terminated_at is not None:
            signal.raise_signal(signal.SIGTERM)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if number == signal.SIGTERM and self._terminated_at is None:
            self._terminated_at = time.monotonic()
        self.notify()
