"""The thread that writes dumps, within a budget of bytes.

The forward pass only reserves bytes and queues tensors. This thread orders, writes, hashes and
publishes them. Any error becomes the request's ``error.json``.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from hs_dump.dump_file import DumpFile, state_bytes, write_error
from hs_dump.names import Name, place_chunk
from hs_dump.numbers import as_float32, bits_of
from hs_dump.witness import Testimony

logger = logging.getLogger(__name__)

_POLL_S = 0.005
_SWEEP_ABOVE = 256  # with more published dumps, look which ones the client has removed
_STALE_S = 600.0  # a request whose next chunk does not come for so long was aborted


class Pass:
    """The states of one forward pass on the host, and what the witnesses read.

    Args:
        states: bf16 ``[rows, H]`` each, CPU, in stored order.
        witnessed: the witnessed rows, ascending.
        testimony: what was read of these rows.
        wait: returns when the tensors hold their values.
    """

    def __init__(
        self,
        states: Sequence[torch.Tensor],
        witnessed: Sequence[int],
        testimony: Testimony,
        wait: Callable[[], None],
    ) -> None:
        self.states, self.wait = states, wait
        self._witnessed = np.array(witnessed, dtype=np.int64)
        self._testimony = testimony

    @cached_property
    def _errors(self) -> np.ndarray:
        """float64 ``[S, L]``, computed once per pass, from the bytes that are stored."""
        rows = [as_float32(bits_of(state)[self._witnessed]) for state in self.states]
        return self._testimony.errors(rows)

    def witness(self, first: int, count: int) -> tuple[int, np.ndarray]:
        """Of ``count`` rows: how many are witnessed, and each state's largest error ``[L]``."""
        low, high = np.searchsorted(self._witnessed, (first, first + count))
        if low == high:
            return 0, np.full(len(self.states), np.nan)
        # max, not fmax: a state is NaN in every row (it has no witness) or in none
        return int(high - low), self._errors[low:high].max(axis=0)


class Chunk(NamedTuple):
    """Rows of one request out of one forward pass."""

    name: Name
    directory: str  # where its dump appears
    total: int  # tokens of the whole request
    start: int  # first row
    input_ids: torch.Tensor  # int [t], CPU (pinned while a copy from the device runs)
    forward: Pass
    first: int  # the chunk's first row in the pass


class Budget:
    """Bytes of dumps that the directory may hold.

    A dump counts from its first chunk until the client has removed it.
    """

    def __init__(self, root: Path, limit_bytes: int, wait_s: float) -> None:
        self.limit_bytes = limit_bytes
        self._root, self._wait_s = root, wait_s
        self._held: dict[str, int] = {}
        self._published: set[str] = set()
        self._sweep_above = _SWEEP_ABOVE
        self._lock = threading.Lock()

    def deadline(self) -> float:
        """Until when a forward pass may wait, all its requests together.

        A deadline for each would add up to more than SGLang's watchdog allows.
        """
        return time.monotonic() + self._wait_s

    def reserve(self, directory: str, size_bytes: int, deadline: float) -> str:
        """Wait until ``size_bytes`` fit; "" when they do, else why they never will."""
        if size_bytes > self.limit_bytes:
            return (
                f"{size_bytes} bytes are more than the whole budget of {self.limit_bytes}: "
                "raise SGLANG_HS_DUMP_BUDGET_BYTES or use a larger dump directory"
            )
        while not self._try_reserve(directory, size_bytes):
            if time.monotonic() > deadline:
                return (
                    f"no budget for {size_bytes} bytes within {self._wait_s:g} s: dumps of "
                    f"{self.held_bytes()} bytes lie undelivered. Is a client removing them?"
                )
            time.sleep(_POLL_S)
        return ""

    def _try_reserve(self, directory: str, size_bytes: int) -> bool:
        with self._lock:
            held = sum(self._held.values()) - self._held.get(directory, 0)
            if held + size_bytes > self.limit_bytes or len(self._published) > self._sweep_above:
                self._forget_delivered()
                # the rest is in use: looking at each of them again for every request would take
                # too many system calls
                self._sweep_above = max(_SWEEP_ABOVE, 2 * len(self._published))
                held = sum(self._held.values()) - self._held.get(directory, 0)
            if held + size_bytes > self.limit_bytes:
                return False
            self._published.discard(directory)
            self._held[directory] = size_bytes
            return True

    def _forget_delivered(self) -> None:
        for directory in [d for d in self._published if not (self._root / d).exists()]:
            self._published.discard(directory)
            self._held.pop(directory, None)

    def published(self, directory: str) -> None:
        with self._lock:
            self._published.add(directory)

    def release(self, directory: str) -> None:
        with self._lock:
            self._published.discard(directory)
            self._held.pop(directory, None)

    def held_bytes(self) -> int:
        with self._lock:
            return sum(self._held.values())


class Writer:
    """Owns the unfinished dumps; the forward pass calls ``put``, ``expect`` and ``fail``."""

    def __init__(
        self, root: Path, num_states: int, hidden_size: int, budget: Budget, meta: dict[str, Any]
    ) -> None:
        self.root, self.budget, self.meta = root, budget, meta
        self._num_states, self._hidden_size = num_states, hidden_size
        self._open: dict[str, tuple[DumpFile, Name, float]] = {}
        self._failed: dict[str, float] = {}
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="hs-dump-writer", daemon=True).start()

    def size_bytes(self, num_tokens: int) -> int:
        return state_bytes(num_tokens, self._num_states, self._hidden_size)

    def put(self, chunk: Chunk) -> None:
        self._queue.put(lambda: self._write(chunk))

    def expect(self, name: Name, directory: str) -> None:
        """A request begins: drop what earlier attempts at its sample left unfinished."""
        self._queue.put(lambda: self._drop_abandoned(name, directory))

    def fail(self, name: Name, directory: str, reason: str) -> None:
        self._queue.put(lambda: self._fail(name, directory, reason))

    def _run(self) -> None:
        while True:
            task = self._queue.get()
            try:
                task()
            except Exception:  # the thread goes on; the task has written its error.json if it could
                logger.exception("hs_dump: a dump was lost")
            del task  # frees its tensors before the next wait

    def _write(self, chunk: Chunk) -> None:
        try:
            chunk.forward.wait()
            self._place(chunk)
        except Exception as error:
            logger.exception("hs_dump: %s", chunk.name.rid)
            self._fail(chunk.name, chunk.directory, f"{type(error).__name__}: {error}")

    def _place(self, chunk: Chunk) -> None:
        name, directory = chunk.name, chunk.directory
        if directory in self._failed and chunk.start:
            return
        dump = self._open[directory][0] if directory in self._open else None
        place = place_chunk(
            dump.next_row if dump else None, chunk.total, chunk.start, len(chunk.input_ids)
        )
        if place.action == "ignore":
            return
        if place.action == "fail":
            self._fail(name, directory, place.reason)
            return
        if place.action == "restart" or dump is None:
            dump = self._begin(chunk)
        self._open[directory] = (dump, name, time.monotonic())
        rows = slice(chunk.first, chunk.first + len(chunk.input_ids))
        dump.append(chunk.input_ids, [state[rows] for state in chunk.forward.states])
        dump.witnessed(*chunk.forward.witness(chunk.first, len(chunk.input_ids)))
        if dump.next_row == chunk.total:
            dump.publish({**self.meta, "rid": name.rid})
            del self._open[directory]
            self.budget.published(directory)

    def _begin(self, chunk: Chunk) -> DumpFile:
        self._failed.pop(chunk.directory, None)
        if chunk.directory in self._open:  # prefilled again
            self._open.pop(chunk.directory)[0].discard()
        shape = (chunk.total, self._num_states, self._hidden_size)
        return DumpFile(self.root, chunk.directory, shape)

    def _drop_abandoned(self, new: Name, new_directory: str) -> None:
        now = time.monotonic()
        for directory, (dump, name, touched) in list(self._open.items()):
            retried = name.sample and name.sample == new.sample
            if directory != new_directory and (retried or now - touched > _STALE_S):
                del self._open[directory]
                dump.discard()
                self.budget.release(directory)
        for directory in [d for d, when in self._failed.items() if now - when > _STALE_S]:
            del self._failed[directory]

    def _fail(self, name: Name, directory: str, reason: str) -> None:
        self._failed[directory] = time.monotonic()
        if directory in self._open:
            self._open.pop(directory)[0].discard()
        self.budget.release(directory)
        write_error(self.root, directory, {**self.meta, "rid": name.rid, "reason": reason})
