"""What a run's page says on top: what was extracted from what, how fast, on which hardware.

Read from what the jobs left (``progress.json``, ``run.json``) and from the store's journal.
"""

import json
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hslib.errors import HslibError
from hslib.job import (
    ProgressState,
    RunRecord,
    duration,
    find_runs,
    missing_shards,
    read_progress,
    read_record,
    watch,
)
from hslib.notebook.report.notebook_file import State
from hslib.store import Store

Tone = Literal["", "ok", "failed", "unfinished"]


@dataclass(frozen=True)
class Fact:
    """A line of the page's table; ``tone``: its colour."""

    name: str
    text: str
    tone: Tone = ""


@dataclass(frozen=True)
class Run:
    """One job: a whole run, or a shard of it."""

    name: str
    state: ProgressState
    record: RunRecord | None


@dataclass(frozen=True)
class RunPage:
    """``parts``: a header, and a line per shard or replica; empty for one server."""

    tone: Tone
    verdict: str
    facts: tuple[Fact, ...]
    next_command: str = ""
    parts: tuple[tuple[str, ...], ...] = ()


def read_run_page(folder: Path, notebooks: Mapping[str, State] | None = None) -> RunPage | None:
    """The page's content, None when no job ran in this folder or in one below it.

    Args:
        notebooks: how those in the folder ran, by number, such as "03".
    """
    told = notebooks or {}
    paths = find_runs(folder)
    runs = [
        Run(path.name, state, read_record(path))
        for path in paths
        if (state := read_progress(path)) is not None
    ]
    if not runs:
        return None
    now = time.time()
    records = [run.record for run in runs if run.record is not None]
    tone, verdict = _verdict([run.state for run in runs], now)
    if missing := missing_shards(paths):
        tone = "failed"
        verdict += f" {missing} of its shards have not begun, or ended before their first row."
    if failed := [number for number, state in told.items() if state == "failed"]:
        tone, verdict = "failed", f"{verdict} Notebook {', '.join(sorted(failed))} failed."
    facts = (*_what(records), *_rows(runs), *_stored(records), *_where(records))
    command = ""
    if records and not failed and not missing:
        done = {number for number, state in told.items() if state == "ok"}
        command = _next_command(folder, runs, tone, done)
    return RunPage(tone, verdict, facts, command, tuple(_parts(runs, now)))


def _verdict(states: Sequence[ProgressState], now: float) -> tuple[Tone, str]:
    left = sum(watch.unfinished_rows(state) for state in states)
    failed = sum(state.failed for state in states)
    asked = sum(state.asked for state in states)
    rejected = sum(state.rejected for state in states)
    stored = f"{asked - left - failed - rejected:,} of {asked:,} rows are in the store"
    at_work = sum(watch.is_at_work(state, now) for state in states)
    if at_work:
        return "unfinished", f"At work: {stored}, {left:,} are left."
    if left:
        how = "Interrupted" if any(s.state == "interrupted" for s in states) else "Not finished"
        why = next((s.message.splitlines()[0] for s in states if s.state == "failed"), "")
        told = f" The job failed: {why}" if why else ""
        return "failed", f"{how}: {stored}, {left:,} are left.{told} Run it again to resume."
    if failed:
        return "failed", f"{stored}; {failed:,} failed. Run it again with retry_failed = True."
    rest = f", {rejected:,} were rejected" if rejected else ""
    return "ok", f"Finished: {stored}{rest}."


def _next_command(folder: Path, runs: Sequence[Run], tone: Tone, notebooks: set[str]) -> str:
    """What a person does next; "" while the job is at work, or when all is done."""
    records = [run.record for run in runs if run.record is not None]
    one = records[0]
    if tone == "failed" and len(runs) == 1:
        retried = {} if watch.unfinished_rows(runs[0].state) else {"retry_failed": True}
        return run_command("03", {**one.parameters, **retried})
    if tone != "ok":
        return ""
    kept = {n: v for n, v in one.parameters.items() if n in ("run_dir", "store_dir")}
    if len(runs) > 1:
        kept = {"run_dir": str(folder), "store_dir": one.store}
    missing = next((number for number in ("04", "05") if number not in notebooks), None)
    if missing:
        return run_command(missing, kept)
    export = f"python -m hslib export {_quoted('store_dir', one.store)} --to speculators OUT"
    return export if "06" not in notebooks else ""


def run_command(notebook: str, parameters: dict[str, Any]) -> str:
    """The command that runs a notebook with these parameters."""
    words = ["python -m hslib run", notebook]
    for name, value in parameters.items():
        if isinstance(value, list | dict):
            words.append(f"-y {shlex.quote(json.dumps({name: value}))}")
        else:
            words.append(f"-p {name} {_quoted(name, value)}")
    return " ".join(words)


def _quoted(name: str, value: object) -> str:
    """For a shell; an address, which no report says, by the parameter's name."""
    has_address = "://" in str(value) or (name == "ray_address" and value != "local")
    return name.upper() if has_address else shlex.quote(str(value))


def _what(records: Sequence[RunRecord]) -> Iterable[Fact]:
    if not records:
        return
    one = records[0]
    yield Fact("model", f"{Path(one.model_path).name} ({one.model_class})")
    yield Fact("states", one.states)
    yield Fact("dataset", Path(one.dataset).name if one.dataset.startswith("/") else one.dataset)


def _rows(runs: Sequence[Run]) -> Iterable[Fact]:
    states = [run.state for run in runs]
    asked, failed, rejected, left = (
        sum(numbers)
        for numbers in zip(
            *((s.asked, s.failed, s.rejected, watch.unfinished_rows(s)) for s in states),
            strict=True,
        )
    )
    yield Fact("rows", f"{asked:,} asked for")
    yield Fact("failed", _with_reasons(failed, states), "failed" if failed else "")
    reasons = (
        states[0].rejected_for if len(states) == 1 else ""
    )  # shards have theirs on their pages
    text = f"{rejected:,}" + (f" ({reasons})" if reasons else "")
    yield Fact("rejected", text, "unfinished" if rejected else "")
    if left:
        yield Fact("left", f"{left:,}", "unfinished")


def _with_reasons(failed: int, states: Iterable[ProgressState]) -> str:
    reasons: dict[str, int] = {}
    for state in states:
        for reason, count in state.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + count
    told = ", ".join(f"{count:,} x {reason}" for reason, count in sorted(reasons.items()))
    return f"{failed:,}" + (f" ({told})" if told else "")


def _stored(records: Sequence[RunRecord]) -> Iterable[Fact]:
    """What the store holds: of all that it holds, which may be more than this run's."""
    from hslib.stats import rate_summary

    for place in dict.fromkeys(record.store for record in records):
        try:
            store = Store(place)
        except (HslibError, OSError) as error:
            text = error.message if isinstance(error, HslibError) else str(error)
            yield Fact("store", f"can't be read: {text}", "failed")
            continue
        entries = store.entries.values()
        tokens = sum(entry.num_tokens for entry in entries)
        size = sum(entry.size_bytes for entry in entries)
        yield Fact("store", f"{len(entries):,} samples, {tokens:,} tokens, {_size(size)}")
        yield Fact("encoding", store.encoding_sentence())
        unwitnessed = bool(store.manifest.unwitnessed) or store.manifest.unwitnessed is None
        yield Fact("witness", store.witness_sentence(), "failed" if unwitnessed else "ok")
        if not entries:
            continue
        begun = min(entry.finished_at - entry.latency_s for entry in entries)
        speed = rate_summary(entries)
        yield Fact("started", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(begun)))
        yield Fact("worked for", duration(speed["hours"] * 3600))
        yield Fact(
            "speed",
            f"{speed['tokens_per_s']:,.0f} tokens/s, {speed['samples_per_s']:,.2f} samples/s, "
            f"{speed['mb_per_s']:,.1f} MB/s",
        )


def _where(records: Sequence[RunRecord]) -> Iterable[Fact]:
    if not records:
        return
    hardware = dict.fromkeys(record.hardware for record in records)
    yield Fact("hardware", "; ".join(hardware))
    versions = records[0].versions
    yield Fact("versions", ", ".join(f"{name} {version}" for name, version in versions.items()))


def _parts(runs: Sequence[Run], now: float) -> Iterable[tuple[str, ...]]:
    """Shards, or one run's replicas; without hosts."""
    if len(runs) > 1:
        yield ("shard", "state", "rows", "in the store", "failed", "left")
        for run in runs:
            state, left = run.state, watch.unfinished_rows(run.state)
            stored = state.already_done + state.ok
            word = "dead" if watch.is_dead(state, now) else state.state
            yield (run.name, word, *(f"{n:,}" for n in (state.asked, stored, state.failed, left)))
    elif runs[0].state.replicas:
        yield ("replica", "state", "extracted", "samples/s")
        for replica in runs[0].state.replicas:
            speed = f"{replica.samples_per_s:.2f}"
            yield (str(replica.number), replica.state, f"{replica.ok:,}", speed)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:,.1f} MB"
