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
from hslib.notebook.report.notebook_file import State, given_parameters
from hslib.store import Store, find_store

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
        JobRun(path.name, state, read_record(path))
        for path in paths
        if (state := read_progress(path)) is not None
    ]
    now = time.time()
    starting = [p for p in paths or [folder] if watch.starting_since(p, read_progress(p))]
    if not runs:
        return page_without_job(folder, told, is_starting=bool(starting))
    records = [run.record for run in runs if run.record is not None]
    tone, verdict = _verdict([run.state for run in runs], now, is_starting=bool(starting))
    if missing := missing_shards(paths):
        tone = "failed"
        verdict += f" {missing} of its shards have not begun, or ended before their first row."
    if failed := [number for number, state in told.items() if state == "failed"]:
        tone, verdict = "failed", f"{verdict} Notebook {', '.join(sorted(failed))} failed."
    one = records[0] if records else None
    what = _what(one.model_path, one.model_class, one.states, one.dataset) if one else ()
    stored = _stored(dict.fromkeys(record.store for record in records))
    facts = (*what, *_rows(runs), *stored, *_where(records))
    command = ""
    if records and not failed and not missing:
        done = {number for number, state in told.items() if state == "ok"}
        command = _next_command(folder, runs, tone, done)
    return RunPage(tone, verdict, facts, command, tuple(_parts(runs, now)))


def _verdict(
    states: Sequence[ProgressState], now: float, is_starting: bool = False
) -> tuple[Tone, str]:
    left = sum(watch.unfinished_rows(state) for state in states)
    failed = sum(state.failed for state in states)
    asked = sum(state.asked for state in states)
    rejected = sum(state.rejected for state in states)
    stored = f"{asked - left - failed - rejected:,} of {asked:,} rows are in the store"
    at_work = sum(watch.is_at_work(state, now) for state in states)
    if at_work:
        return "running", f"At work: {stored}, {left:,} are left."
    if is_starting:
        return "running", f"At work: a server is started. Until now {stored}."
    if left:
        interrupted = any(s.state == "interrupted" for s in states)
        how = "Interrupted" if interrupted else "Not finished"
        why = next((s.message.splitlines()[0] for s in states if s.state == "failed"), "")
        told = f" The job failed: {why}" if why else ""
        tone: Tone = "unfinished" if interrupted and not why else "failed"
        return tone, f"{how}: {stored}, {left:,} are left.{told} Run it again to resume."
    if failed:
        return "failed", f"{stored}; {failed:,} failed. Run it again with retry_failed = True."
    rest = f", {rejected:,} were rejected" if rejected else ""
    return "ok", f"Finished: {stored}{rest}."


def _next_command(folder: Path, runs: Sequence[JobRun], tone: Tone, notebooks: set[str]) -> str:
    """What a person does next; "" while the job is at work, or when all is done."""
    records = [run.record for run in runs if run.record is not None]
    one = records[0]
    if tone in ("failed", "unfinished") and len(runs) == 1:
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


def page_without_job(
    folder: Path, notebooks: Mapping[str, State], is_starting: bool
) -> RunPage | None:
    """Of a folder in which no job has told of itself: what its notebooks were given and read.

    None when there is no notebook, either.
    """
    if is_starting:
        return RunPage("running", "At work: a server is started for the first job here.", ())
    if not notebooks:
        return None
    number = max(sorted(notebooks), key=lambda one: notebooks[one] == "failed")
    how, tone = _HOW.get(notebooks[number], ("did not run to its end", "unfinished"))
    given = given_parameters(folder, number)
    kept = {n: v for n, v in given.items() if n in ("run_dir", "store_dir")}
    facts = _of_its_store(folder, given)
    missing = next((one for one in ("04", "05") if notebooks.get(one) != "ok"), "")
    command = ""
    if tone != "ok":
        command = run_command(number, given)
    elif facts and missing:
        command = run_command(missing, kept)
    known = {"model": "model_path", "dataset": "dataset_path", "store": "store_dir"}
    told = [Fact(what, str(given[name])) for what, name in known.items() if given.get(name)]
    verdict = f"Notebook {number} {how}; no job has extracted rows in this folder."
    return RunPage(tone, verdict, facts or tuple(told), command)


_HOW: dict[State, tuple[str, Tone]] = {"ok": ("has run", "ok"), "failed": ("failed", "failed")}


def _of_its_store(folder: Path, given: Mapping[str, Any]) -> tuple[Fact, ...]:
    """Of the store that a notebook was given, or the folder's own; empty where there is none."""
    place = str(given.get("store_dir") or folder / "store")
    try:
        store = find_store(place)
    except (HslibError, OSError):
        return tuple(_stored([place]))  # says why
    if store is None:
        return ()
    m = store.manifest
    what = _what(m.model_path, m.model_class, m.states_sentence(), m.dataset_path)
    return (*what, *_stored([place]))


def _what(model_path: str, model_class: str, states: str, dataset: str) -> Iterable[Fact]:
    yield Fact("model", f"{Path(model_path).name} ({model_class})")
    yield Fact("states", states)
    yield Fact("dataset", Path(dataset).name if dataset.startswith("/") else dataset)


def _rows(runs: Sequence[JobRun]) -> Iterable[Fact]:
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


def _stored(places: Iterable[str]) -> Iterable[Fact]:
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


def _where(records: Sequence[RunRecord]) -> Iterable[Fact]:
    if not records:
        return
    hardware = dict.fromkeys(record.hardware for record in records)
    yield Fact("hardware", "; ".join(hardware))
    versions = records[0].versions
    yield Fact("versions", ", ".join(f"{name} {version}" for name, version in versions.items()))


def _parts(runs: Sequence[JobRun], now: float) -> Iterable[tuple[str, ...]]:
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
