"""Reading a store, verifying and repairing it.

::

    manifest.json                         what all samples have in common
    journal.jsonl                         a line per finished sample: the commit
    samples/00012/00012345.safetensors    input_ids, loss_mask, hidden_states
    quarantine/                           what repair() moved away

A store is in a directory or below a prefix of a bucket (``s3://bucket/prefix``). In a bucket the
names of samples and journals also have an id, so that none is used twice. A file counts only if a
live ``ok`` line of a journal names it.
"""

import functools
import os
import shlex
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hslib.errors import StoreError
from hslib.files import TensorFile, TensorFileError
from hslib.store.encoding import WORDS, KeptStates
from hslib.store.entry import Entry, JournalState, combine
from hslib.store.manifest import Manifest, find_manifest, read_manifest
from hslib.store.sample_file import Fault, check_file, checked_states, kept_states
from hslib.store.sizes import STORED_TOKEN_BYTES
from hslib.store.storage import open_storage
from hslib.store.writer import StoreWriter

if TYPE_CHECKING:
    import torch


_READERS, _TOKENS_AHEAD = 8, 256
_WITNESS_STEPS = (0.005, 0.01, 0.02, 0.07)  # in words; the numbers are in the journal


@dataclass(frozen=True, eq=False)
class StoredSample:
    """One sample. From a directory it is memory-mapped, and read only when it is used.

    ``input_ids`` int64 [T], ``loss_mask`` uint8 [T]. ``states`` are decoded when they are asked
    for, one layer or all. A method that finds them damaged raises :class:`StoreError`.
    """

    entry: Entry
    manifest: Manifest
    input_ids: "torch.Tensor"
    loss_mask: "torch.Tensor"
    states: KeptStates
    not_sound: Callable[[str], StoreError]

    def __repr__(self) -> str:
        states = self.manifest.states_sentence()
        return (
            f"StoredSample({self.index}: {self.entry.num_tokens} tokens, {states}, "
            f"{self.entry.encoding})"
        )

    @property
    def index(self) -> int:
        return self.entry.index

    @property
    def boundaries(self) -> tuple[int, ...]:
        return self.manifest.boundaries

    @functools.cached_property
    def hidden_states(self) -> "torch.Tensor":
        """bf16 [T, L, H]: boundaries ascending, then the final state if it is stored."""
        return self._decoded(self.states.whole)

    def layer(self, boundary: int) -> "torch.Tensor":
        """The state at a boundary, bf16 [T, H]."""
        if boundary not in self.boundaries:
            raise StoreError(
                f"boundary {boundary} is not stored", fix=f"one of {list(self.boundaries)}"
            )
        return self._one(self.boundaries.index(boundary))

    @property
    def final(self) -> "torch.Tensor":
        """The state after the model's last norm, bf16 [T, H]."""
        if not self.manifest.stores_final:
            raise StoreError(
                "the final state is not stored",
                fix="extract again with store_final = True, or read a boundary",
            )
        return self._one(self.manifest.num_states - 1)

    def _one(self, number: int) -> "torch.Tensor":
        if "hidden_states" in self.__dict__:  # decoded already
            return self.hidden_states[:, number]
        return self._decoded(functools.partial(self.states.one, number))

    def _decoded(self, decode: Callable[[], np.ndarray]) -> "torch.Tensor":
        try:
            return _as_tensor(decode())
        except TensorFileError as error:
            raise self.not_sound(str(error)) from error


class Tokens(NamedTuple):
    """A sample without its states: ``input_ids`` int64 [T], ``loss_mask`` uint8 [T]."""

    input_ids: "torch.Tensor"
    loss_mask: "torch.Tensor"


@dataclass(frozen=True)
class VerifyReport:
    """What :meth:`Store.verify` found."""

    checked: int
    size_bytes: int
    deep: bool
    faults: tuple[Fault, ...]
    store: str = ""  # its path or URL

    @property
    def clean(self) -> bool:
        return not self.faults

    def require_clean(self) -> None:
        """Raises :class:`StoreError` when a sample is not sound, so that papermill fails."""
        if self.faults:
            raise StoreError(
                f"{len(self.faults)} of {self.checked} stored samples are not sound",
                indices=[fault.index for fault in self.faults[:20]],
                fix=f"{_repair(self.store)}, then run the job again: it extracts them anew",
            )

    def sentence(self) -> str:
        """The verdict in words."""
        how = "every byte of" if self.deep else "the size of"
        if self.clean:
            return f"Verified {how} {self.checked} stored samples: all are what was committed."
        first = self.faults[0]
        return (
            f"Verified {how} {self.checked} stored samples: {len(self.faults)} are NOT sound; the "
            f"first is sample {first.index} ({first.check}: {first.detail}). To have them "
            f"extracted anew, {_repair(self.store)}, and the job again."
        )


def find_store(path: str | Path) -> "Store | None":
    """The store, None where there is none yet.

    Raises:
        StoreError: it can't be read.
    """
    return None if find_manifest(open_storage(path)) is None else Store(path)


class Store:
    """Read access to a store, whatever shards wrote it.

    Raises:
        StoreError: no manifest, a journal that can't be read, or an object store that refuses.
        ParameterError: a URL that is none of a store.
    """

    def __init__(self, path: str | Path) -> None:
        self.storage = open_storage(path)
        self.path = self.storage.url
        self.manifest = read_manifest(self.storage)
        self.journal_state = self._read_journals()

    def _read_journals(self) -> JournalState:
        return combine(self.storage.entries())

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}: {len(self)} samples, {self.manifest.states_sentence()})"

    @property
    def entries(self) -> dict[int, Entry]:
        """Index -> journal line of each stored sample, ascending."""
        return self.journal_state.stored

    def witness(self) -> dict[str, float | None]:
        """Per state, the largest error between it and what its layer read, over all samples.

        None where a sample has no witness of the state.
        """
        found: dict[str, float | None] = dict.fromkeys(self.manifest.state_names, 0.0)
        for entry in self.entries.values():
            for state, layer in zip(found, entry.layers, strict=False):
                before, error = found[state], layer.get("witness")
                found[state] = None if before is None or error is None else max(before, error)
        return found

    def witness_sentence(self) -> str:
        """Whether the stored states are what their layers read, in words."""
        if not len(self):
            return "No sample is stored yet."
        found = self.witness()
        unknown = [state for state, error in found.items() if error is None]
        if unknown:
            of = "" if self.manifest.unwitnessed is None else f" ({', '.join(unknown)})"
            return f"States are {self.manifest.witness_sentence()}{of}."
        worst = max(error for error in found.values() if error is not None)
        limit = next((step for step in _WITNESS_STEPS if worst <= step), worst)
        return (
            f"Each of {len(found)} states was compared with what its layer read, at a few tokens "
            f"of each of {len(self):,} samples: no error is above {limit:g}."
        )

    def encoding_sentence(self) -> str:
        """How the files keep the states, and what was lost by it, in words."""
        counts = Counter(entry.encoding for entry in self.entries.values())
        names = [n if len(counts) == 1 else f"{counts[n]:,} samples {n}" for n in sorted(counts)]
        text = "; ".join(f"{name}: {WORDS[name.split()[-1]]}" for name in names)
        state, worst = max(self.encoding_errors().items(), key=lambda item: item[1])
        if worst:
            text += f"; a token's state differs by at most {worst:.1%} (L2; {state})"
        return text or self.manifest.encoding_sentence()

    def encoding_errors(self) -> dict[str, float]:
        """Per state, the largest relative error (L2) of a token that its encoding has made."""
        found = dict.fromkeys(self.manifest.state_names, 0.0)
        for entry in self.entries.values():
            for state, layer in zip(found, entry.layers, strict=False):
                found[state] = max(found[state], layer.get("encoding_error", 0.0))
        return found

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, index: int) -> bool:
        return index in self.entries

    def __iter__(self) -> Iterator[StoredSample]:
        return (self[index] for index in self.entries)

    def __getitem__(self, index: int) -> StoredSample:
        """Raises :class:`StoreError` when the row is not stored or its file is not whole."""
        entry = self._entry(index)
        file = self._open(entry)
        try:
            return self._sample(entry, file, kept_states(entry, self.manifest, file))
        except TensorFileError as error:
            raise self._not_sound(entry, str(error)) from error

    def checked(self, index: int) -> StoredSample:
        """The sample, after every byte was compared with its journal line.

        Raises:
            StoreError: it is not stored, or not sound.
        """
        entry = self._entry(index)
        file = self._open(entry)
        try:
            found = checked_states(entry, self.manifest, file)
        except TensorFileError as error:
            raise self._not_sound(entry, str(error)) from error
        if isinstance(found, Fault):
            raise self._not_sound(entry, f"{found.check}: {found.detail}")
        return self._sample(entry, file, found)

    def tokens(self, indices: Iterable[int] | None = None) -> Iterator[Tokens]:
        """Ids and masks of these samples, or of all, in order; reads no states.

        Raises:
            StoreError: one is not stored, or its file is cut short or gone.
        """
        wanted = list(self.entries if indices is None else indices)
        with ThreadPoolExecutor(_READERS) as pool:
            for start in range(0, len(wanted), _TOKENS_AHEAD):
                yield from pool.map(self._read_tokens, wanted[start : start + _TOKENS_AHEAD])

    def _read_tokens(self, index: int) -> Tokens:
        entry = self._entry(index)
        count, end = entry.num_tokens, entry.size_bytes  # ids and mask are last in a file
        size = STORED_TOKEN_BYTES * count
        try:
            data = self.storage.read_range(entry.file, end - size, end)
        except FileNotFoundError as error:
            raise self._not_sound(entry, str(error)) from error
        if len(data) != size:
            raise self._not_sound(entry, "it is cut short")
        ids = np.frombuffer(data, "<i8", count)
        return Tokens(_as_tensor(ids), _as_tensor(np.frombuffer(data, "u1", offset=8 * count)))

    def _entry(self, index: int) -> Entry:
        if index not in self.entries:
            raise StoreError(
                f"sample {index} is not in the store: {self._why_not(index)}", index=index
            )
        return self.entries[index]

    def _why_not(self, index: int) -> str:
        state = self.journal_state
        if index in state.failed:
            return f"it failed: {state.failed[index].reason}"
        if index in state.revoked:
            return f"it was taken back ({state.revoked[index].reason}), and not extracted again yet"
        if index in state.rejected:
            return f"its row was rejected: {state.rejected[index].reason}"
        return "it was not extracted"

    def _open(self, entry: Entry) -> TensorFile:
        try:
            return self.storage.open(entry.file)
        except (TensorFileError, FileNotFoundError) as error:
            raise self._not_sound(entry, str(error)) from error

    def _not_sound(self, entry: Entry, why: str) -> StoreError:
        return StoreError(
            f"sample {entry.index} is not sound: {why}",
            index=entry.index,
            file=entry.file,
            fix=f"{_repair(str(self.path))}, and extract again",
        )

    def _sample(self, entry: Entry, file: TensorFile, states: KeptStates) -> StoredSample:
        ids, mask = (_as_tensor(file.arrays[name]) for name in ("input_ids", "loss_mask"))
        not_sound = functools.partial(self._not_sound, entry)
        return StoredSample(entry, self.manifest, ids, mask, states, not_sound)

    def verify(
        self,
        deep: bool = False,
        on_checked: Callable[[int], None] = lambda _size_bytes: None,
    ) -> VerifyReport:
        """Compare files with their journal lines: only the size, or every byte (``deep``).

        Deep reads each file once and compares its header, the checksum of all tensors, and the
        digest of the ids. In a bucket an object whose ETag is not the journal's is always read.

        Raises:
            OSError, StoreError: a file could not be read, so its sample is neither good nor bad.
        """
        stat, entries = self.storage.survey(), self.entries.values()

        def check(entry: Entry) -> Fault | None:
            fault = check_file(self.storage, entry, self.manifest, deep, stat)
            on_checked(entry.size_bytes)
            return fault

        with ThreadPoolExecutor(min(8, (os.cpu_count() or 1) * 2)) as pool:
            faults = tuple(fault for fault in pool.map(check, entries) if fault)
        size = sum(entry.size_bytes for entry in entries)
        return VerifyReport(len(entries), size, deep, faults, str(self.path))

    def repair(self, report: VerifyReport) -> list[int]:
        """Move bad samples' files into ``quarantine/`` and revoke their journal lines.

        Samples that were extracted again since the report stay. Returns the moved indices, which
        the next extraction does again.
        """
        reported = {fault.index: self.entries[fault.index].entry for fault in report.faults}
        moved = []
        with StoreWriter(self.path, self.manifest) as writer:
            self.journal_state = self._read_journals()
            for fault in report.faults:
                entry = self.entries.get(fault.index)
                if entry is None or entry.entry != reported[fault.index]:
                    continue
                if check_file(self.storage, entry, self.manifest, report.deep) is not None:
                    writer.revoke(entry, f"{fault.check}: {fault.detail}")
                    moved.append(fault.index)
        self.journal_state = self._read_journals()
        return moved


def _repair(store: str) -> str:
    return f"run `python -m hslib verify {shlex.quote(store)} --repair`"


def _as_tensor(array: np.ndarray) -> "torch.Tensor":
    """A tensor that shares a read-only array's memory; uint16 is the bits of bf16."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the memory is read-only: it is
        tensor = torch.from_numpy(array if array.flags.aligned else array.copy())
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor
