"""How a job in another process stands, read from its ``progress.json``.

A job renews that file twice a second. Before its first word it starts a server, under the run's
lock. Which runs are one job's shards stands in ``run.json``.
"""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from hslib.job.progress import (
    STALE_S,
    ProgressState,
    ReplicaState,
    duration,
    read_progress,
    time_words,
)
from hslib.job.record import read_record
from hslib.server import launch
from hslib.server.job_lock import job_since
from hslib.server.processes import is_alive
from hslib.store import size_words


def find_runs(folder: Path) -> list[Path]:
    """The runs of one job's shards below the folder, by number; else the folder if a job ran there.

    Runs of several jobs side by side are not one: those of the job that was told of last are.
    """
    shards: dict[tuple[str, int], list[Path]] = {}
    for path in folder.glob("*/progress.json"):
        record = read_record(path.parent)
        if record is not None and record.num_shards > 1:
            shards.setdefault((record.store, record.num_shards), []).append(path.parent)
    if shards:
        return sorted(max(shards.values(), key=_told_at), key=_shard_of)
    return [folder] if (folder / "progress.json").is_file() else []


def missing_shards(runs: Sequence[Path]) -> int:
    """How many of a job's shards have not begun, or ended before their first row."""
    records = [record for run in runs if (record := read_record(run)) is not None]
    found = {record.shard_index for record in records}
    return records[0].num_shards - len(found) if records else 0


def _told_at(runs: Iterable[Path]) -> float:
    return max((run / "progress.json").stat().st_mtime for run in runs)


def _shard_of(run: Path) -> int:
    record = read_record(run)
    return record.shard_index if record else 0


def is_at_work(state: ProgressState | None, now: float) -> bool:
    """Whether a job runs, and not only said so before it died. Pure."""
    return state is not None and state.state == "running" and now - state.updated_at <= STALE_S


def starting_since(run_path: Path, state: ProgressState | None) -> float | None:
    """When a job began that has not told of itself yet, as its servers start; unix seconds.

    Args:
        state: the last word in the run, perhaps of an earlier job.
    """
    server = launch.read_state(run_path)
    # there are file systems without locks, and kernels that hold theirs from one job to the next
    launched = server.launched_at if server and server.for_job and is_alive(server) else 0.0
    begun = max(job_since(run_path) or 0.0, launched)
    return begun if begun > (state.updated_at if state else 0.0) else None


def facts(state: ProgressState, now: float) -> list[tuple[str, str]]:
    """Names and words, in the order in which a person asks. Pure."""
    rows = (
        f"{state.asked} asked for, {state.already_done} already done, "
        f"{state.ok} extracted, {state.failed} failed, {state.rejected} rejected"
    )
    found = [
        ("job", _how_it_stands(state, now)),
        ("progress", progress_words(state)),
        ("rows", rows),
    ]
    if state.state == "running":
        found.append(("time", time_words(state)))
    found += [(f"replica {replica.number}", _replica(replica)) for replica in state.replicas]
    reasons = sorted(state.reasons.items(), key=lambda item: -item[1])
    found += [("failed", f"{count} x {reason}") for reason, count in reasons]
    found += [("disk left", _disk(state, name)) for name in sorted(state.free_bytes)]
    is_said = state.state == "interrupted" and state.message.startswith("stopped ")
    if state.message and not is_said:
        found.append(("message", state.message))
    return found


def is_busy(run_path: Path, now: float) -> bool:
    """Whether a job works here, or starts its server."""
    state = read_progress(run_path)
    return is_at_work(state, now) or starting_since(run_path, state) is not None


def starting_words(since: float, now: float) -> str:
    """What a job does that has not told of itself yet. Pure."""
    when = time.strftime("%H:%M:%S", time.localtime(since))
    return f"starting its server since {when} ({duration(max(0.0, now - since))})"


def progress_words(state: ProgressState) -> str:
    """What is done of what was asked, and how fast; :func:`time_words` say how long. Pure."""
    done = state.asked - state.unfinished_rows
    return (
        f"{done:,} of {state.asked:,} rows, {state.samples_per_s:,.2f} samples/s, "
        f"{state.tokens_per_s:,.0f} tokens/s, {state.mb_per_s:,.1f} MB/s, "
        f"{size_words(state.size_bytes)} written"
    )


def _how_it_stands(state: ProgressState, now: float) -> str:
    left = f"run again to resume, {state.unfinished_rows:,} rows are left"
    if state.is_dead(now):
        silent_s = now - state.updated_at
        return f"DEAD (process {state.pid} has written nothing for {silent_s:.0f} s): {left}"
    return f"interrupted: {left}" if state.state == "interrupted" else state.state


def _replica(replica: ReplicaState) -> str:
    where = f" on {replica.host}" if replica.host else ""
    return f"{replica.state}{where}, {replica.ok} extracted, {replica.samples_per_s:.2f} samples/s"


def _disk(state: ProgressState, name: str) -> str:
    """Free space, and how long it lasts at the job's pace, where that is what it fills."""
    left = state.free_bytes[name]
    text = f"{left / 1e9:,.1f} GB for {name}"
    if name == "the store" and state.mb_per_s > 0 and state.state == "running":
        text += f", enough for {left / 1e6 / state.mb_per_s / 3600:,.1f} h at this pace"
    return text
