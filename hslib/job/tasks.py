"""Calls that run in a pool of threads, and what one thread does when each has ended."""

import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Tasks:
    """Everything but the calls themselves happens in the thread that calls :meth:`take`."""

    def __init__(self, most_threads: int) -> None:
        self._pool = ThreadPoolExecutor(most_threads, thread_name_prefix="hslib-worker")
        self._ended: queue.SimpleQueue[Future[Any] | None] = queue.SimpleQueue()
        self._then: dict[Future[Any], Callable[[Future[Any]], None]] = {}

    def __len__(self) -> int:
        """Calls that run, or whose end was not taken yet."""
        return len(self._then)

    def submit(self, call: Callable[[], T], then: Callable[[Future[T]], None]) -> None:
        """Run ``call`` in the pool; :meth:`take` runs ``then`` once it has ended."""
        future = self._pool.submit(call)
        self._then[future] = then
        future.add_done_callback(self._ended.put)

    def wake(self) -> None:
        """Let :meth:`take` return; safe in a signal handler, and from any thread."""
        self._ended.put(None)

    def take(self, timeout_s: float) -> None:
        """Wait until one call ends, :meth:`wake` or the timeout; do what follows a call.

        Raises:
            Exception: what followed raised.
        """
        try:
            future = self._ended.get(timeout=timeout_s)
        except queue.Empty:
            return
        if future is not None:
            self._then.pop(future)(future)

    def shutdown(self, wait: bool) -> None:
        """Begin nothing more; ``wait`` for the calls that run."""
        self._pool.shutdown(wait=wait, cancel_futures=True)
