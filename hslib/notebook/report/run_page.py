"""A run's page, on top of its notebooks': verdict, facts, and the command to run next.

Read from what the jobs left (``progress.json``, ``run.json``) and from the store's journal.
"""

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hslib.errors import HslibError
from hslib.job import (
    ProgressState,
    find_runs,
    missing_shards,
    read_progress,
    read_record,
    watch,
)
from hslib.notebook.report.notebook_file import State, given_parameters
from hslib.notebook.report.run_facts import (
    Fact,
    JobRun,
    Tone,
    host_facts,
    model_facts,
    parts_table,
    row_facts,
    store_facts,
)
from hslib.store import find_store


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
        last = "The last run of notebook" if tone == "ok" else "Notebook"
        tone, verdict = "failed", f"{verdict} {last} {', '.join(sorted(failed))} failed."
    one = records[0] if records else None
    what = model_facts(one.model_path, one.model_class, one.states, one.dataset) if one else ()
    stored = store_facts(dict.fromkeys(record.store for record in records))
    facts = (*what, *row_facts(runs), *stored, *host_facts(records))
    command = ""
    if records and not failed and not missing:
        done = {number for number, state in told.items() if state == "ok"}
        command = _next_command(folder, runs, tone, done)
    return RunPage(tone, verdict, facts, command, tuple(parts_table(runs, now)))


def _verdict(
    states: Sequence[ProgressState], now: float, is_starting: bool = False
) -> tuple[Tone, str]:
    left = sum(state.unfinished_rows for state in states)
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
    rest = f", {rejected:,} rejected" if rejected else ""
    return "ok", f"Finished: {stored}{rest}."


def _next_command(folder: Path, runs: Sequence[JobRun], tone: Tone, notebooks: set[str]) -> str:
    """What a person does next; "" while the job is at work, or when all is done."""
    records = [run.record for run in runs if run.record is not None]
    one = records[0]
    if tone in ("failed", "unfinished") and len(runs) == 1:
        retried = {} if runs[0].state.unfinished_rows else {"retry_failed": True}
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
    if number == "01" and tone == "ok":
        if facts and given.get("dataset_path"):  # else it is told below
            facts = (*facts, Fact("compared with", Path(str(given["dataset_path"])).name))
        if differing := _mismatch(folder):
            tone, verdict, command = "failed", f"Notebook 01 has found a mismatch: {differing}.", ""
    return RunPage(tone, verdict, facts or tuple(told), command)


def _mismatch(folder: Path) -> str:
    """What notebook 01 counted in a folder without a job; "" where all agrees."""
    try:
        found = json.loads((folder / "metrics.json").read_bytes())
    except (OSError, ValueError):
        return ""
    pairs = (
        ("samples_differing", "samples_compared", "samples differ"),
        ("rows_with_other_ids", "rows_tokenized", "rows get other ids when they are tokenized"),
    )
    parts = [f"{found[n]:,} of {found[of]:,} {words}" for n, of, words in pairs if found.get(n)]
    return ", ".join(parts)


_HOW: dict[State, tuple[str, Tone]] = {"ok": ("has run", "ok"), "failed": ("failed", "failed")}


def _of_its_store(folder: Path, given: Mapping[str, Any]) -> tuple[Fact, ...]:
    """Of the store that a notebook was given, or the folder's own; empty where there is none."""
    place = str(given.get("store_dir") or folder / "store")
    try:
        store = find_store(place)
    except (HslibError, OSError):
        return tuple(store_facts([place]))  # says why
    if store is None:
        return ()
    m = store.manifest
    what = model_facts(m.model_path, m.model_class, m.states_sentence(), m.dataset_path)
    return (*what, *store_facts([place]))
