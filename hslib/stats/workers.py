"""Threads that compute in order, each with one of torch's own.

Blocks of tokens and small matrices are too little work to be divided further, and torch's threads
would wait for each other.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")


def in_order(
    work: Callable[[Item], Value], items: Iterable[Item], workers: int = 0
) -> Iterator[Value]:
    """Results in the order of ``items``; few of these are taken ahead of what is asked for."""
    import torch

    count = workers or os.cpu_count() or 1
    with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting: deque[Future[Value]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
