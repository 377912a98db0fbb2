"""Interrupts counted instead of raised, while a job runs.

A ``KeyboardInterrupt`` is raised wherever the main thread happens to be, and lost if that is a
finalizer that the garbage collector calls.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupts:
    """A context manager; :attr:`count` is how many there were. Of the main thread only.

    A process that was started to ignore them, as a shell's background job, goes on to.

    Args:
        notify: called at each; it must be safe in a signal handler.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        self.count, self._notify = 0, notify
        self._before: Any = None

    def __enter__(self) -> "Interrupts":
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self._notify()
