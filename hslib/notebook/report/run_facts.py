"""A run's page, its facts: model, rows, store, speed, hardware; each a line of its table."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hslib.errors import HslibError
from hslib.job import ProgressState, RunRecord, duration
from hslib.store import Store

Tone = Literal["", "ok", "running", "unfinished", "failed"]


@dataclass(frozen=True)
class Fact:
    """A line of the page's table; ``tone``: its colour."""

    name: str
    text: str
    tone: Tone = ""


@dataclass(frozen=True)
class JobRun:
    """One job: a whole run, or a shard of it."""

    name: str
    state: ProgressState
    record: RunRecord | None


def model_facts(model_path: str, model_class: str, states: str, dataset: str) -> Iterable[Fact]:
    """The model, the states that are stored of it, and the dataset."""
    yield Fact("model", f"{Path(model_path).name} ({model_class})")
    yield Fact("boundaries", states)
    yield Fact("dataset", Path(dataset).name if dataset.startswith("/") else dataset)


def row_facts(runs: Sequence[JobRun]) -> Iterable[Fact]:
    """How many rows were asked for, and what became of those that are not stored."""
    states = [run.state for run in runs]
    asked, failed, rejected, left = (
        sum(numbers)
        for numbers in zip(
            *((s.asked, s.failed, s.rejected, s.unfinished_rows) for s in states),
            strict=True,
        )
    )
    yield Fact("rows", f"{asked:,} asked for")
    yield Fact("failed", _with_reasons(failed, states), "failed" if failed else "")
    reasons = states[0].rejected_for if len(states) == 1 else ""  # shards' pages have theirs
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


def store_facts(places: Iterable[str]) -> Iterable[Fact]:
    """What the store holds: of all that it holds, which may be more than this run's."""
    from hslib.stats import rate_summary

    for place in places:
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


def host_facts(records: Sequence[RunRecord]) -> Iterable[Fact]:
    """Hardware and versions of the run, not of who reads it."""
    if not records:
        return
    hardware = dict.fromkeys(record.hardware for record in records)
    yield Fact("hardware", "; ".join(hardware))
    versions = records[0].versions
    yield Fact("versions", ", ".join(f"{name} {version}" for name, version in versions.items()))


def parts_table(runs: Sequence[JobRun], now: float) -> Iterable[tuple[str, ...]]:
    """Shards, or one run's replicas; without hosts."""
    if len(runs) > 1:
        yield ("shard", "state", "rows", "in the store", "failed", "left")
        for run in runs:
            state, left = run.state, run.state.unfinished_rows
            stored = state.already_done + state.ok
            word = "dead" if state.is_dead(now) else state.state
            yield (run.name, word, *(f"{n:,}" for n in (state.asked, stored, state.failed, left)))
    elif runs[0].state.replicas:
        yield ("replica", "state", "extracted", "samples/s")
        for replica in runs[0].state.replicas:
            speed = f"{replica.samples_per_s:.2f}"
            yield (str(replica.number), replica.state, f"{replica.ok:,}", speed)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:,.1f} MB"
