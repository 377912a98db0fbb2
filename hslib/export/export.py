"""Store -> the files that a trainer reads offline; nothing shifted, cut, padded or reordered.

::

    export.json     what all files have in common; another export into the folder is refused
    export.jsonl    a line per finished row: the commit, as in the store
    ...             the trainer's own files (``hslib.export.speculators``, ``.specforge``)

Row r of an export is the r-th stored sample in index order, of those that the drafter can train on.
Threads make the rows. A second run makes only rows whose line is missing, names another sample, or
names a file of another size. A drafter that reads the same files may be exported into the same
folder: only the files that all rows share are made anew.
"""

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from hslib.errors import ExportError
from hslib.export import fp8
from hslib.export.draft_vocabulary import VocabularyMap, count_tokens, vocabulary_map
from hslib.export.drafters import Drafter
from hslib.export.format import Context, ExportedRow, TrainerFormat
from hslib.export.reading import Reading, make_reading
from hslib.export.report import ExportReport
from hslib.files import Lock, write_atomically, write_file
from hslib.model import read_model
from hslib.store import Entry, Manifest, Store

FORMAT = "hslib-export-1"
_ROWS_MEASURED = 16  # of an fp8 export, for its error


def export_store(
    store: Store,
    out: Path,
    trainer: TrainerFormat,
    model_path: Path,
    draft_vocab_size: int = 0,
    workers: int = 0,
    on_row: Callable[[int], None] = lambda _size_bytes: None,
    boundaries: Sequence[int] | None = None,
) -> ExportReport:
    """Write a store as ``trainer`` reads it; run again to resume or to add new samples.

    Args:
        model_path: the model's folder, for its norm and for the config snippet.
        draft_vocab_size: 0 = the model's whole vocabulary.
        workers: threads; 0 = a few.
        boundaries: of the store's; None = all that the drafter reads.

    Raises:
        ExportError: the trainer would read such states wrongly, or the folder holds another export.
        StoreError: a stored sample is not whole.
    """
    if not len(store):
        raise ExportError("the store is empty", path=str(store.path), fix="extract first")
    manifest, drafter = store.manifest, trainer.drafter
    _check_vocabulary(drafter, draft_vocab_size, manifest.vocab_size)
    _check_model(manifest, trainer, model_path)
    begun = _read_kind(out)
    reading = make_reading(manifest, drafter, model_path, boundaries, bool(begun.get("norm")))
    plan = _plan(store, drafter)
    out.mkdir(parents=True, exist_ok=True)
    with Lock(out / ".export.lock", f"the export {out}"):
        words = {"states": manifest.witness_sentence(), "stored as": store.encoding_sentence()}
        _write_or_check_kind(out, _kind(manifest, trainer, reading), words)
        rows, made = _make_rows(store, plan, out, trainer, reading, workers, on_row)
        counts = count_tokens(store.tokens(entry.index for entry in plan))
        context = Context(
            store=store,
            out=out,
            model_path=model_path,
            reading=reading,
            rows=rows,
            longest=max(entry.num_tokens for entry in plan),
            vocabulary=_vocabulary(counts, draft_vocab_size, manifest.vocab_size),
            token_counts=dict(sorted(counts.items())),
        )
        trainer.finish(context)
    return ExportReport(
        trainer=drafter.trainer,
        drafter=drafter.name,
        dtype=trainer.dtype,
        path=out,
        model_path=model_path,
        reading=reading,
        rows=len(rows),
        made=made,
        left_out=len(store) - len(plan),
        size_bytes=sum(row.size_bytes for row in rows),
        coverage=context.vocabulary.coverage if context.vocabulary else None,
        fp8_errors=_fp8_errors(store, plan, reading) if trainer.dtype == "fp8" else {},
        witness=words["states"],
        encoding=words["stored as"],
        train_command=trainer.train_command(out),
        notes=trainer.notes(model_path),
    )


def _check_model(manifest: Manifest, trainer: TrainerFormat, model_path: Path) -> None:
    model = read_model(model_path)
    if model.config_hash != manifest.model_config_hash:
        raise ExportError(
            f"{model_path} is not the model that the store's states came from",
            expected=manifest.model_config_hash,
            got=model.config_hash,
            fix="give the folder that the server served",
        )
    trainer.check(model.model_type, model_path)


def _check_vocabulary(drafter: Drafter, draft_size: int, vocab_size: int) -> None:
    if draft_size not in (0, vocab_size) and not drafter.takes_vocabulary:
        raise ExportError(
            f"{drafter.title} proposes out of the model's whole vocabulary of {vocab_size} tokens, "
            f"not of {draft_size}",
            fix="set draft_vocab_size to 0",
        )


def _vocabulary(counts: Counter[int], draft_size: int, vocab_size: int) -> VocabularyMap | None:
    return None if draft_size in (0, vocab_size) else vocabulary_map(counts, draft_size, vocab_size)


def _plan(store: Store, drafter: Drafter) -> list[Entry]:
    """The samples that become rows, in index order."""
    entries = list(store.entries.values())
    if not drafter.needs_pair:
        return entries
    pairs = zip(entries, store.tokens(), strict=True)
    plan = [entry for entry, tokens in pairs if has_pair(tokens.loss_mask.numpy())]
    if not plan:
        raise ExportError(
            f"{drafter.title} trains on two tokens in a row, and no stored sample has two",
            fix="train on more of each row: see its loss mask in notebook 00",
        )
    return plan


def has_pair(loss_mask: np.ndarray) -> bool:
    """Whether two neighbouring tokens train. Pure."""
    trains = loss_mask != 0
    return bool((trains[1:] & trains[:-1]).any())


def _fp8_errors(store: Store, plan: Sequence[Entry], reading: Reading) -> dict[str, float]:
    """The relative error of each state, the largest of the first rows."""
    worst = [0.0] * len(reading.state_names)
    for entry in plan[:_ROWS_MEASURED]:
        states = reading.all(store[entry.index].hidden_states)
        found = fp8.relative_errors(states, fp8.dequantise(*fp8.quantise(states)))
        worst = [max(pair) for pair in zip(worst, found, strict=True)]
    return dict(zip(reading.state_names, worst, strict=True))


def read_rows(out: Path) -> dict[int, ExportedRow]:
    """The finished rows of an export by number; a torn last line is left out."""
    path = out / "export.jsonl"
    if not path.exists():
        return {}
    lines = (line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n"))
    rows = {}
    for line in lines:
        found = orjson.loads(line)
        found.pop("linked", None)  # of exports made before links were given up
        rows[found["row"]] = ExportedRow(**found)
    return dict(sorted(rows.items()))


def _make_rows(
    store: Store,
    plan: Sequence[Entry],
    out: Path,
    trainer: TrainerFormat,
    reading: Reading,
    workers: int,
    on_row: Callable[[int], None],
) -> tuple[tuple[ExportedRow, ...], int]:
    """Make the rows that are not done; all rows, and how many of them were made."""
    done = {}
    for number, row in read_rows(out).items():
        if _is_done(out, plan, row):
            done[number] = row
        else:  # its sample was revoked, or has another row number now
            (out / row.file).unlink(missing_ok=True)
    listing, lock = out / "export.jsonl", threading.Lock()
    write_atomically(listing, b"".join(_line(row) for row in done.values()))
    with (
        listing.open("ab", buffering=0) as lines,
        ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool,
    ):

        def make(number: int) -> ExportedRow:
            entry, file = plan[number], trainer.file(number)
            target = out / file
            target.parent.mkdir(parents=True, exist_ok=True)
            write_file(target, trainer.parts(store.checked(entry.index), reading), ".tmp")
            row = ExportedRow(number, entry.index, entry.checksum, file, target.stat().st_size)
            with lock:
                lines.write(_line(row))
            on_row(row.size_bytes)
            return row

        futures = [pool.submit(make, number) for number in range(len(plan)) if number not in done]
        try:
            done |= {row.row: row for row in (future.result() for future in futures)}
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return tuple(done[number] for number in sorted(done)), len(futures)


def _is_done(out: Path, plan: Sequence[Entry], row: ExportedRow) -> bool:
    if row.row >= len(plan) or plan[row.row].checksum != row.source:
        return False
    path = out / row.file
    return path.is_file() and path.stat().st_size == row.size_bytes


def _line(row: ExportedRow) -> bytes:
    return orjson.dumps(asdict(row)) + b"\n"


def _kind(manifest: Manifest, trainer: TrainerFormat, reading: Reading) -> dict[str, Any]:
    """Everything but the sample that the bytes of a row's file depend on."""
    bridge, schema = reading.bridge, trainer.drafter.schema
    kind: dict[str, Any] = {
        "format": FORMAT,
        "trainer": trainer.drafter.trainer,
        "boundaries": list(reading.boundaries),
        "hidden_size": manifest.hidden_size,
        "dtype": "float8_e4m3fn" if trainer.dtype == "fp8" else manifest.dtype,
        "model_config_hash": manifest.model_config_hash,
        "final": bridge.wanted if bridge else None,
        "norm": bridge.norm.digest if bridge and bridge.norm else None,
    }
    # absent in exports of versions that knew eagle3 and the final state alone
    if schema:
        kind["schema"] = schema
    if bridge and bridge.boundary is not None:
        kind["last_state"] = bridge.boundary
    return kind


def _read_kind(out: Path) -> dict[str, Any]:
    """What ``export.json`` says; empty where there is none."""
    path = out / "export.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


def _write_or_check_kind(out: Path, kind: dict[str, Any], words: dict[str, str]) -> None:
    """Raises :class:`ExportError` when the folder holds another export, or other files.

    Args:
        words: sentences written beside the kind and never compared.
    """
    path = out / "export.json"
    if not path.is_file():
        strangers = sorted(file.name for file in out.iterdir() if file.name != ".export.lock")
        if strangers:
            raise ExportError(
                f"{out} is not empty and not an export",
                found=strangers[:5],
                fix="name a new folder",
            )
        written = kind | words
        write_atomically(path, json.dumps(written, indent=1).encode())
        return
    found = _read_kind(out)
    for name in words:
        found.pop(name, None)
    if found != kind:
        names = dict.fromkeys([*kind, *found])
        both = {name: (found.get(name), kind.get(name)) for name in names}
        differing = {name: pair for name, pair in both.items() if pair[0] != pair[1]}
        raise ExportError(
            f"{out} holds an export of another kind: {', '.join(differing)} differ",
            differing=differing,
            fix="name a new folder",
        )
