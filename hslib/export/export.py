"""Store -> the files that a trainer reads offline; nothing shifted, cut, padded or reordered.

::

    export.json     what all files have in common; another export into the folder is refused
    export.jsonl    a line per finished row: the commit, as in the store
    ...             the trainer's own files (``hslib.export.speculators``, ``.specforge``)

Row r of an export is the r-th stored sample in index order. Threads make the rows. A second run
makes only rows whose line is missing, names another sample, or names a file of another size.
"""

import json
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from hslib.errors import ExportError
from hslib.export.draft_vocabulary import count_tokens, vocabulary_map
from hslib.export.format import Bridge, Context, Row, TrainerFormat
from hslib.files import Lock, write_atomically, write_file
from hslib.model import Side, read_final_norm, read_model
from hslib.store import Entry, Manifest, Store

FORMAT = "hslib-export-1"


@dataclass(frozen=True)
class ExportReport:
    """A finished export."""

    trainer: str
    path: Path
    model_path: Path
    rows: int
    made: int  # in this run; the others were there
    size_bytes: int
    boundaries: tuple[int, ...]
    bridge: str
    coverage: float | None
    witness: str
    train_command: str

    def facts(self) -> dict[str, str]:
        """For a table."""
        whole = "all tokens" if self.coverage is None else f"{self.coverage:.1%} of trained tokens"
        return {
            "trainer": self.trainer,
            "rows": f"{self.rows:,} ({self.made:,} made now)",
            "size": f"{self.size_bytes / 1e6:,.1f} MB",
            "aux boundaries": ", ".join(map(str, self.boundaries)),
            "final state": self.bridge,
            "states": self.witness,
            "draft vocabulary": whole,
        }


def export_store(
    store: Store,
    out: Path,
    trainer: TrainerFormat,
    model_path: Path,
    draft_vocab_size: int = 0,
    workers: int = 0,
    on_row: Callable[[int], None] = lambda _size_bytes: None,
) -> ExportReport:
    """Write a store as ``trainer`` reads it; run again to resume or to add new samples.

    Args:
        model_path: the model's folder, for its norm and for the config snippet.
        draft_vocab_size: 0 = the model's whole vocabulary.
        workers: threads; 0 = a few.

    Raises:
        ExportError: the trainer would read such states wrongly, or the folder holds another export.
        StoreError: a stored sample is not whole.
    """
    if not len(store):
        raise ExportError("the store is empty", path=str(store.path), fix="extract first")
    bridge = make_bridge(store.manifest, trainer, model_path)
    out.mkdir(parents=True, exist_ok=True)
    with Lock(out / ".export.lock", f"the export {out}"):
        kind = _kind(store.manifest, trainer, bridge)
        _write_or_check_kind(out, kind, store.manifest.witness_sentence())
        rows, made = _make_rows(store, out, trainer, bridge, workers, on_row)
        counts = dict(sorted(count_tokens(store.tokens()).items()))
        vocab_size = store.manifest.vocab_size
        whole = draft_vocab_size in (0, vocab_size)
        vocabulary = None if whole else vocabulary_map(counts, draft_vocab_size, vocab_size)
        longest = max(entry.num_tokens for entry in store.entries.values())
        trainer.finish(Context(store, out, model_path, rows, longest, vocabulary, counts))
    return ExportReport(
        trainer=trainer.name,
        path=out,
        model_path=model_path,
        rows=len(rows),
        made=made,
        size_bytes=sum(row.size_bytes for row in rows),
        boundaries=store.manifest.boundaries,
        bridge=f"{bridge.wanted}-norm"
        + (" as stored" if bridge.norm is None else f", from the stored {bridge.stored}-norm"),
        coverage=vocabulary.coverage if vocabulary else None,
        witness=store.manifest.witness_sentence(),
        train_command=trainer.train_command(out),
    )


def make_bridge(manifest: Manifest, trainer: TrainerFormat, model_path: Path) -> Bridge:
    """How the final state must be carried; checks that the trainer reads such a store right.

    Raises:
        ExportError: it does not, the model is another, or its norm can't be undone.
    """
    model = read_model(model_path)
    if model.config_hash != manifest.model_config_hash:
        raise ExportError(
            f"{model_path} is not the model that the store's states came from",
            expected=manifest.model_config_hash,
            got=model.config_hash,
            fix="give the folder that the server served",
        )
    if not manifest.stores_final:
        raise ExportError(
            f"{trainer.name} reads the last state, and the store has no final state",
            fix="extract with store_final = True",
        )
    trainer.check(manifest, model.model_type)
    stored: Side = "pre" if manifest.final_norm == "pre" else "post"
    if stored == trainer.final_side:
        return Bridge(stored, stored, None)
    norm = read_final_norm(model_path)
    if trainer.final_side == "pre":
        norm.require_invertible()
    return Bridge(stored, trainer.final_side, norm)


def read_rows(out: Path) -> dict[int, Row]:
    """The finished rows of an export by number; a torn last line is left out."""
    path = out / "export.jsonl"
    if not path.exists():
        return {}
    lines = (line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n"))
    rows = {}
    for line in lines:
        found = orjson.loads(line)
        found.pop("linked", None)  # of exports made before links were given up
        rows[found["row"]] = Row(**found)
    return dict(sorted(rows.items()))


def _make_rows(
    store: Store,
    out: Path,
    trainer: TrainerFormat,
    bridge: Bridge,
    workers: int,
    on_row: Callable[[int], None],
) -> tuple[tuple[Row, ...], int]:
    """Make the rows that are not done; all rows, and how many of them were made."""
    plan = list(store.entries.values())
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

        def make(number: int) -> Row:
            entry, file = plan[number], trainer.file(number)
            target = out / file
            target.parent.mkdir(parents=True, exist_ok=True)
            write_file(target, trainer.parts(store.checked(entry.index), bridge), ".tmp")
            row = Row(number, entry.index, entry.checksum, file, target.stat().st_size)
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


def _is_done(out: Path, plan: Sequence[Entry], row: Row) -> bool:
    if row.row >= len(plan) or plan[row.row].checksum != row.source:
        return False
    path = out / row.file
    return path.is_file() and path.stat().st_size == row.size_bytes


def _line(row: Row) -> bytes:
    return orjson.dumps(asdict(row)) + b"\n"


def _kind(manifest: Manifest, trainer: TrainerFormat, bridge: Bridge) -> dict[str, Any]:
    """Everything but the sample that the bytes of a row's file depend on."""
    return {
        "format": FORMAT,
        "trainer": trainer.name,
        "boundaries": list(manifest.boundaries),
        "hidden_size": manifest.hidden_size,
        "dtype": manifest.dtype,
        "model_config_hash": manifest.model_config_hash,
        "final": bridge.wanted,
        "norm": bridge.norm.digest if bridge.norm else None,
    }


def _write_or_check_kind(out: Path, kind: dict[str, Any], witness: str) -> None:
    """Raises :class:`ExportError` when the folder holds another export, or other files.

    Args:
        witness: a sentence written beside the kind and never compared.
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
        written = kind | {"states": witness}
        write_atomically(path, json.dumps(written, indent=1).encode())
        return
    found = json.loads(path.read_text())
    found.pop("states", None)
    if found != kind:
        differing = {k: (found.get(k), kind[k]) for k in kind if found.get(k) != kind[k]}
        raise ExportError(
            f"{out} holds an export of another kind: {', '.join(differing)} differ",
            differing=differing,
            fix="name a new folder",
        )
