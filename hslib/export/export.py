"""Store -> the files that a trainer reads offline; nothing shifted, cut, padded or reordered.

::

    export.json     what all files have in common; another export into the folder is refused
    export.jsonl    a line per finished row: the commit, as in the store
    ...             the trainer's own files (``hslib.export.speculators``, ``.export_specforge``)

Row r of an export is the r-th stored sample in index order. Streamed, in parallel, and
resumable: a row whose line names the same sample, made in the same way, is not made again.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from hslib.errors import ExportError
from hslib.export.draft_vocabulary import VocabularyMap, count_tokens, vocabulary_map
from hslib.files import Lock, write_atomically, write_file
from hslib.model import FinalNorm, Side, read_final_norm, read_model
from hslib.store import Entry, Manifest, Store, StoredSample, Tokens

if TYPE_CHECKING:
    import torch

FORMAT = "hslib-export-1"


@dataclass(frozen=True)
class Row:
    """One finished row: a line of ``export.jsonl``."""

    row: int
    index: int  # the sample's, in the store
    source: str  # the stored sample's checksum
    file: str  # below the export
    size_bytes: int
    linked: bool = False


@dataclass(frozen=True)
class Bridge:
    """How the stored final state gets to the side of the norm that the trainer reads."""

    stored: Side
    wanted: Side
    norm: FinalNorm | None  # None when both are the same and nothing is touched

    def final(self, stored: "torch.Tensor") -> "torch.Tensor":
        """bf16 [T, H] as stored -> as wanted.

        Raises:
            ExportError: this norm can't have made these states.
        """
        if self.norm is None:
            return stored
        return self.norm.unnormed(stored) if self.wanted == "pre" else self.norm.normed(stored)


@dataclass(frozen=True)
class Context:
    """What a trainer's own files are made of, once all rows are there."""

    store: Store
    out: Path
    model_path: Path
    rows: tuple[Row, ...]
    longest: int  # tokens
    vocabulary: VocabularyMap | None  # None = the model's whole vocabulary
    token_counts: dict[int, int]

    def tokens(self) -> Iterator[Tokens]:
        """Of each row, in row order."""
        return self.store.tokens(row.index for row in self.rows)


class TrainerFormat(Protocol):
    """What one trainer's files look like."""

    name: str
    final_side: Side

    def check(self, manifest: Manifest, model_type: str) -> None:
        """Raises :class:`ExportError` when this trainer can't read such a store right."""

    def file(self, row: int) -> str:
        """Where a row lies below the export."""

    def parts(self, sample: StoredSample, bridge: Bridge) -> Iterator[bytes | memoryview]:
        """The bytes of a row's file."""

    def finish(self, context: Context) -> None:
        """Write what all rows have in common: tables, vocabulary maps, a config to start from."""


@dataclass(frozen=True)
class ExportReport:
    """What an export came to."""

    trainer: str
    path: Path
    model_path: Path
    rows: int
    made: int  # in this run; the others were there
    linked: int  # of those made
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
            "rows": f"{self.rows:,} ({self.made:,} made now, {self.linked:,} of them links)",
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
    link_from: Path | None = None,
    on_row: Callable[[int], None] = lambda _size_bytes: None,
) -> ExportReport:
    """Write a store as ``trainer`` reads it; run again to resume or to add new samples.

    Args:
        model_path: the model's folder, for its norm and for the config snippet.
        draft_vocab_size: 0 = the model's whole vocabulary.
        workers: threads; 0 = a few.
        link_from: an earlier export of the same kind, whose files are linked where the bytes
            would be the same.

    Raises:
        ExportError: the trainer can't read such states right, or the folder holds another export.
        StoreError: a stored sample is not whole.
    """
    if not len(store):
        raise ExportError("the store is empty", path=str(store.path), fix="extract first")
    bridge = make_bridge(store.manifest, trainer, model_path)
    out.mkdir(parents=True, exist_ok=True)
    with Lock(out / ".export.lock", f"the export {out}"):
        kind = _kind(store.manifest, trainer, bridge)
        _write_or_check_kind(out, kind, store.manifest.witness_sentence())
        work = _Work(store, out, trainer, bridge, _linkable(link_from, out, kind))
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
        linked=sum(row.linked for row in made),
        size_bytes=sum(row.size_bytes for row in rows),
        boundaries=store.manifest.boundaries,
        bridge=f"{bridge.wanted}-norm"
        + (" as stored" if bridge.norm is None else f", from the stored {bridge.stored}-norm"),
        coverage=vocabulary.coverage if vocabulary else None,
        witness=store.manifest.witness_sentence(),
    )


def make_bridge(manifest: Manifest, trainer: TrainerFormat, model_path: Path) -> Bridge:
    """Check that the trainer reads this store right, and how its final state must be carried.

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
    rows = (Row(**orjson.loads(line)) for line in lines)
    return dict(sorted((row.row, row) for row in rows))


class _Work:
    """The rows of one run."""

    def __init__(
        self,
        store: Store,
        out: Path,
        trainer: TrainerFormat,
        bridge: Bridge,
        linkable: dict[str, Path],
    ) -> None:
        self._store, self._out, self._trainer, self._bridge = store, out, trainer, bridge
        self._linkable = linkable
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
        for line in self._stale:  # of samples that were taken back or moved to another row
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
        linked = self._link(entry.checksum, target)
        if not linked:
            parts = self._trainer.parts(self._store.checked(entry.index), self._bridge)
            write_file(target, parts, ".tmp")
        size = target.stat().st_size
        return Row(row, entry.index, entry.checksum, file, size, linked)

    def _link(self, source: str, target: Path) -> bool:
        """A hard link to an earlier export's file of the same sample, where the disk allows it."""
        if source not in self._linkable:
            return False
        target.unlink(missing_ok=True)
        try:
            os.link(self._linkable[source], target)
        except OSError:  # another file system, or one without links
            return False
        return True


def _linkable(link_from: Path | None, out: Path, kind: dict[str, Any]) -> dict[str, Path]:
    """Source checksum -> file of an earlier export that was made in the same way."""
    if link_from is None:
        return {}
    if link_from.resolve() == out.resolve() or _read_kind(link_from) != kind:
        raise ExportError(
            f"{link_from} is no other export of the same kind: its files can't be linked",
            fix="leave link_from away, or name an export for the same trainer of the same states",
        )
    rows = read_rows(link_from).values()
    return {row.source: link_from / row.file for row in rows if (link_from / row.file).is_file()}


def _kind(manifest: Manifest, trainer: TrainerFormat, bridge: Bridge) -> dict[str, Any]:
    """What the bytes of a row's file depend on besides its sample."""
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
    """Raises :class:`ExportError` when the folder holds another export, or somebody's files.

    Args:
        witness: a sentence beside the kind; exports made before it have none.
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
        told = kind | {"states": witness}
        write_atomically(out / "export.json", json.dumps(told, indent=1).encode())
    elif found != kind:
        differing = {k: (found.get(k), kind[k]) for k in kind if found.get(k) != kind[k]}
        raise ExportError(
            f"{out} holds an export of another kind: {', '.join(differing)} differ",
            differing=differing,
            fix="name a new folder",
        )
