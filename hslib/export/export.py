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
from collections.abc import Callable
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
        work = _Work(store, out, trainer, bridge)
        made = work.run(workers, on_row)
        counts = dict(sorted(count_tokens(store.tokens()).items()))
        vocab_size = store.manifest.vocab_size
        whole = draft_vocab_size in (0, vocab_size)
        vocabulary = None if whole else vocabulary_map(counts, draft_vocab_size, vocab_size)
        rows = tuple(work.done[row] for row in sorted(work.done))
        longest = max(entry.num_tokens for entry in store.entries.values())
        trainer.finish(Context(store, out, model_path, rows, longest, vocabulary, counts))
    return ExportReport(
        trainer=trainer.name,
        path=out,
        model_path=model_path,
        rows=len(rows),
        made=len(made),
        size_bytes=sum(row.size_bytes for row in rows),
        boundaries=store.manifest.boundaries,
        bridge=f"{bridge.wanted}-norm"
        + (" as stored" if bridge.norm is None else f", from the stored {bridge.stored}-norm"),
        coverage=vocabulary.coverage if vocabulary else None,
        witness=store.manifest.witness_sentence(),
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


class _Work:
    """The rows that are done, and those that are still to make."""

    def __init__(
        self,
        store: Store,
        out: Path,
        trainer: TrainerFormat,
        bridge: Bridge,
    ) -> None:
        self._store, self._out, self._trainer, self._bridge = store, out, trainer, bridge
        self._plan = list(store.entries.values())
        before = read_rows(out)
        self.done = {row: line for row, line in before.items() if self._is_done(row, line)}
        self._stale = [line for row, line in before.items() if row not in self.done]
        self._lock = threading.Lock()

    def _is_done(self, row: int, line: Row) -> bool:
        if row >= len(self._plan) or self._plan[row].checksum != line.source:
            return False
        path = self._out / line.file
        return path.is_file() and path.stat().st_size == line.size_bytes

    def run(self, workers: int, on_row: Callable[[int], None]) -> list[Row]:
        """Make what is not done; returns the rows made."""
        for line in self._stale:  # its sample was revoked, or has another row number now
            (self._out / line.file).unlink(missing_ok=True)
        todo = [(row, entry) for row, entry in enumerate(self._plan) if row not in self.done]
        listing = self._out / "export.jsonl"
        lines = (orjson.dumps(asdict(line)) + b"\n" for line in self.done.values())
        write_atomically(listing, b"".join(lines))
        with (
            listing.open("ab", buffering=0) as lines_out,
            ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool,
        ):

            def make(item: tuple[int, Entry]) -> Row:
                line = self._make(*item)
                with self._lock:
                    lines_out.write(orjson.dumps(asdict(line)) + b"\n")
                    self.done[line.row] = line
                on_row(line.size_bytes)
                return line

            futures = [pool.submit(make, item) for item in todo]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _make(self, row: int, entry: Entry) -> Row:
        file = self._trainer.file(row)
        target = self._out / file
        target.parent.mkdir(parents=True, exist_ok=True)
        parts = self._trainer.parts(self._store.checked(entry.index), self._bridge)
        write_file(target, parts, ".tmp")
        return Row(row, entry.index, entry.checksum, file, target.stat().st_size)


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


def _read_kind(out: Path) -> dict[str, Any] | None:
    path = out / "export.json"
    if not path.is_file():
        return None
    found = dict(json.loads(path.read_text()))
    found.pop("states", None)
    return found


def _write_or_check_kind(out: Path, kind: dict[str, Any], witness: str) -> None:
    """Raises :class:`ExportError` when the folder holds another export, or other files.

    Args:
        witness: a sentence written beside the kind and never compared.
    """
    found = _read_kind(out)
    if found is None:
        strangers = sorted(path.name for path in out.iterdir() if path.name != ".export.lock")
        if strangers:
            raise ExportError(
                f"{out} is not empty and not an export",
                found=strangers[:5],
                fix="name a new folder",
            )
        written = kind | {"states": witness}
        write_atomically(out / "export.json", json.dumps(written, indent=1).encode())
    elif found != kind:
        differing = {k: (found.get(k), kind[k]) for k in kind if found.get(k) != kind[k]}
        raise ExportError(
            f"{out} holds an export of another kind: {', '.join(differing)} differ",
            differing=differing,
            fix="name a new folder",
        )
