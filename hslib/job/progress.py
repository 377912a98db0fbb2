"""What a running job tells: a log flushed line by line, ``progress.json``, a bar.

Both files are readable while a notebook cell runs, which stores its output only at the end.
"""

import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import pydantic

from hslib.files import write_atomically
from hslib.job.pace import Amounts, Pace
from hslib.store import StoreUrl

LOG_EVERY_S = 2.0
REFRESH_EVERY_S = 0.5
STALE_S = 4.0  # a dead job is called dead within five seconds

State = Literal["running", "finished", "interrupted", "failed"]


class ReplicaState(pydantic.BaseModel, frozen=True):
    """One of the servers of a job on a cluster. ``samples_per_s`` since it began."""

    number: int
    host: str
    state: str  # in words: "working", "starting", "given up: ..."
    ok: int
    samples_per_s: float


class ProgressState(pydantic.BaseModel):
    """``progress.json``. Counts are of this run; ``stored`` is the whole store.

    Rates are of the last minute; of the whole run once it has ended.
    """

    state: State = "running"
    pid: int = pydantic.Field(default_factory=os.getpid)
    started_at: float = pydantic.Field(default_factory=time.time)  # unix seconds
    updated_at: float = 0.0
    asked: int
    ok: int = 0
    failed: int
    rejected: int
    already_done: int
    stored: int
    num_tokens: int = 0
    size_bytes: int = 0
    samples_per_s: float = 0.0
    tokens_per_s: float = 0.0
    mb_per_s: float = 0.0
    eta_s: float | None = None
    last_index: int | None = None
    rejected_for: str = ""  # reasons of the rejected rows, counted
    reasons: dict[str, int] = {}  # failures by the check or error that caused them
    free_bytes: dict[str, int] = {}  # what is left where the job writes: "the store", "dumps"
    replicas: tuple[ReplicaState, ...] = ()  # of a job on a cluster
    dump_dirs: dict[str, str] = {}  # where its dumps lie, and how their names begin
    message: str = ""

    @property
    def unfinished_rows(self) -> int:
        """Rows that have no outcome yet."""
        return self.asked - self.already_done - self.ok - self.failed - self.rejected

    def is_dead(self, now: float) -> bool:
        """Whether the job said that it runs, and then nothing more."""
        return self.state == "running" and now - self.updated_at > STALE_S


class Progress:
    """Counts outcomes and reports them; thread-safe, and a context manager.

    Args:
        begun: how the job stands before anything is sent.
        todo_tokens: tokens still to be extracted, for the ETA.
        disks: where the job writes, by what it writes there; their free space is in the state.
    """

    def __init__(
        self,
        run_path: Path,
        begun: ProgressState,
        todo_tokens: int,
        disks: Mapping[str, StoreUrl] | None = None,
        show: Callable[[ProgressState], None] | None = None,
    ) -> None:
        self._run_path = run_path
        self._now, self._todo_tokens = begun, todo_tokens
        self._request_s = 0.0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._pace = Pace(time.monotonic())
        self._disks = dict(disks or {})
        # who is at work, on a cluster
        self.replicas: Callable[[], tuple[ReplicaState, ...]] = tuple
        self._show = show or terminal_bar()
        self.log = open_log(run_path / "extraction.log")
        self._ticker = threading.Thread(target=self._tick, name="hslib-progress", daemon=True)

    def __enter__(self) -> "Progress":
        self._write()
        self._ticker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _tb: object) -> None:
        now = self._now
        if kind is not None:
            is_interrupt = issubclass(kind, KeyboardInterrupt)
            now.state = "interrupted" if is_interrupt else "failed"
            now.message = "stopped at once" if is_interrupt else str(error)[:2000]
        elif now.state == "running":
            now.state = "finished"
        self._stop.set()
        self._ticker.join()
        self._log_line()
        if now.message:
            self.log.error("%s: %s", now.state, now.message)
        self._write()
        close_log(self.log)

    def interrupted(self) -> None:
        """The job ends early because it was asked to."""
        self._now.state, self._now.message = "interrupted", "stopped on request"

    def stored(
        self,
        index: int | None,
        num_tokens: int,
        size_bytes: int,
        request_s: float,
        count: int = 1,
    ) -> None:
        """``count`` samples are committed, the last of them ``index``."""
        with self._lock:
            self._now.ok += count
            self._now.stored += count
            self._now.num_tokens += num_tokens
            self._now.size_bytes += size_bytes
            self._now.last_index, self._request_s = index, request_s

    def failed(self, index: int, num_tokens: int, check: str, reason: str) -> None:
        with self._lock:
            self._now.failed += 1
            self._todo_tokens -= num_tokens
            self._now.reasons[check] = self._now.reasons.get(check, 0) + 1
        self.log.error("[%d] failed: %s", index, reason)

    def snapshot(self) -> ProgressState:
        """The state right now."""
        free = free_bytes(self._disks)  # not under the lock: a file system may be slow to say
        with self._lock:
            now, at = self._now, time.monotonic()
            counts = Amounts(now.ok, now.num_tokens, now.size_bytes)
            pace = self._pace.rates if now.state == "running" else self._pace.overall
            rates = pace(at, counts)
            left = self._todo_tokens - now.num_tokens
            found = {
                "updated_at": time.time(),
                "samples_per_s": rates.samples,
                "tokens_per_s": rates.tokens,
                "mb_per_s": rates.size_bytes / 1e6,
                "eta_s": left / rates.tokens if rates.tokens else None,
                "reasons": dict(now.reasons),
                "free_bytes": free,
                "replicas": self.replicas(),
            }
            return now.model_copy(update=found)

    def _tick(self) -> None:
        last_log = time.monotonic()
        while not self._stop.wait(REFRESH_EVERY_S):
            self._write()
            if time.monotonic() - last_log >= LOG_EVERY_S:
                last_log = time.monotonic()
                self._log_line()

    def _log_line(self) -> None:
        self.log.info(log_line(self.snapshot(), self._request_s))

    def _write(self) -> None:
        state = self.snapshot()
        try:
            write_progress(self._run_path, state)
        except OSError as error:  # a full disk must not hide the job's own error
            self.log.warning("progress.json can't be written: %s", error)
        self._show(state)


def log_line(state: ProgressState, request_s: float | None) -> str:
    """One progress line; ``{x}`` of the case study's log, with failures counted."""
    eta = "?" if state.eta_s is None else f"{state.eta_s / 60:.0f}"
    index = "-" if state.last_index is None else state.last_index
    request = "" if request_s is None else f"req_time={request_s:.2f}s, "
    replicas = f", {at_work(state)}" if state.replicas else ""
    return (
        f"[{index}] {state.ok} extracted ({state.stored} total), "
        f"{state.samples_per_s:.2f} samples/s, {state.tokens_per_s:.0f} tok/s, "
        f"{state.mb_per_s:.1f} MB/s, {request}ETA: {eta} min, "
        f"failed: {state.failed}, {state.size_bytes / 1e9:.2f} GB{replicas}"
    )


def duration(seconds: float) -> str:
    """``2 h 05 min``, ``3 min``, ``12 s``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def time_words(state: ProgressState) -> str:
    """How long a job has been at work, and how long it will be at its pace."""
    elapsed = duration(max(0.0, state.updated_at - state.started_at))
    left = "" if state.eta_s is None else f", about {duration(max(0.0, state.eta_s))} left"
    return f"{elapsed} elapsed{left}"


def at_work(state: ProgressState) -> str:
    """How many of a cluster's replicas are."""
    count = sum(replica.state == "working" for replica in state.replicas)
    return f"{count} of {len(state.replicas)} replicas at work"


def open_log(path: Path) -> logging.Logger:
    """A logger that appends to one file and flushes every line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    logger = logging.getLogger(f"hslib.job.{path}")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    close_log(logger)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    return logger


def close_log(logger: logging.Logger) -> None:
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


def terminal_bar() -> Callable[[ProgressState], None]:
    """A tqdm bar on stderr; silent where that is no terminal."""
    import tqdm

    line: Any = None

    def show(state: ProgressState) -> None:
        nonlocal line
        if line is None:
            before = state.rejected + state.already_done
            line = tqdm.tqdm(total=state.asked, initial=before, unit="sample", disable=None)
        line.n = state.ok + state.failed + state.rejected + state.already_done
        line.set_postfix_str(f"failed {state.failed}, {state.mb_per_s:.1f} MB/s")
        if state.state != "running":
            line.close()

    return show


def free_bytes(disks: Mapping[str, StoreUrl]) -> dict[str, int]:
    """What is free on each file system; one that can't be asked, or is none, is left out."""
    found = {}
    for name, path in disks.items():
        with contextlib.suppress(OSError):
            found[name] = shutil.disk_usage(path).free
    return found


def write_progress(run_path: Path, state: ProgressState) -> None:
    """Replace ``progress.json``."""
    write_atomically(run_path / "progress.json", state.model_dump_json(indent=1).encode())


def read_progress(run_path: Path) -> ProgressState | None:
    """``progress.json`` of a run, None when there is none."""
    try:
        return ProgressState.model_validate_json((run_path / "progress.json").read_bytes())
    except FileNotFoundError:
        return None
