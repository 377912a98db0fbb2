"""Where validated samples live: read, verify, repair.

::

    manifest.json                         what all samples have in common
    journal.jsonl                         a line a finished sample: the commit
    samples/00012/00012345.safetensors    input_ids, loss_mask, hidden_states
    quarantine/                           what repair() moved away

A file counts only if a live ``ok`` line of a journal names it.
"""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hslib.errors import StoreError
from hslib.journal import Entry, Ledger, combine, read_journal
from hslib.manifest import read_manifest
from hslib.samplefile import Fault, check_file
from hslib.tensorfile import TensorFileError, open_tensors
from hslib.writer import StoreWriter

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class StoredSample:
    """One sample, memory-mapped: tensors are views, nothing is read before it is used.

    ``input_ids`` int64 [T], ``loss_mask`` uint8 [T], ``hidden_states`` bf16 [T, L, H] with
    boundaries ascending and the final state last.
    """

    entry: Entry
    boundaries: tuple[int, ...]
    input_ids: "torch.Tensor"
    loss_mask: "torch.Tensor"
    hidden_states: "torch.Tensor"

    @property
    def index(self) -> int:
        return self.entry.index

    def layer(self, boundary: int) -> "torch.Tensor":
        """The state at a boundary, bf16 [T, H]."""
        if boundary not in self.boundaries:
            raise StoreError(
                f"boundary {boundary} is not stored", fix=f"one of {list(self.boundaries)}"
            )
        return self.hidden_states[:, self.boundaries.index(boundary)]

    @property
    def final(self) -> "torch.Tensor":
        """The state after the model's last norm, bf16 [T, H]."""
        return self.hidden_states[:, -1]


@dataclass(frozen=True)
class VerifyReport:
    """What :meth:`Store.verify` found."""

    checked: int
    size_bytes: int
    deep: bool
    faults: tuple[Fault, ...]

    @property
    def clean(self) -> bool:
        return not self.faults

    def sentence(self) -> str:
        """The verdict in words."""
        how = "every byte of" if self.deep else "the size of"
        if self.clean:
            return f"Verified {how} {self.checked} stored samples: all are what was committed."
        first = self.faults[0]
        return (
            f"Verified {how} {self.checked} stored samples: {len(self.faults)} are NOT sound; the "
            f"first is sample {first.index} ({first.check}: {first.detail}). Run Store.repair()."
        )


class Store:
    """Read access to a store, whatever shards wrote it.

    Raises:
        StoreError: no manifest, or a journal that can't be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest = read_manifest(self.path)
        self.ledger = self._read_ledger()

    def _read_ledger(self) -> Ledger:
        journals = sorted(self.path.glob("journal*.jsonl"))
        return combine(entry for journal in journals for entry in read_journal(journal))

    @property
    def entries(self) -> dict[int, Entry]:
        """Index -> journal line of each stored sample, ascending."""
        return self.ledger.stored

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, index: int) -> bool:
        return index in self.entries

    def __iter__(self) -> Iterator[StoredSample]:
        return (self[index] for index in self.entries)

    def __getitem__(self, index: int) -> StoredSample:
        """Raises :class:`StoreError` when the row is not stored or its file is not whole."""
        if index not in self.entries:
            failed = self.ledger.failed.get(index)
            why = f"it failed: {failed.reason}" if failed else "it was not extracted"
            raise StoreError(f"sample {index} is not in the store: {why}", index=index)
        entry = self.entries[index]
        try:
            arrays = open_tensors(self.path / entry.file).arrays
        except (TensorFileError, FileNotFoundError) as error:
            raise StoreError(
                f"sample {index} is not sound: {error}", index=index, fix="run repair()"
            ) from error
        tensors = {name: _as_tensor(array) for name, array in arrays.items()}
        return StoredSample(entry, self.manifest.boundaries, **tensors)

    def verify(
        self,
        deep: bool = False,
        indices: Iterable[int] | None = None,
        workers: int = 0,
        on_checked: Callable[[int], None] = lambda _size_bytes: None,
    ) -> VerifyReport:
        """Compare files with their journal lines: size only, or every byte (``deep``).

        Deep reads each file once: header rebuilt and compared, checksum over all tensors,
        digest over the ids.

        Raises:
            OSError: a file could not be read, which says nothing of the sample.
        """
        wanted = list(self.entries if indices is None else indices)

        def check(index: int) -> Fault | None:
            entry = self.entries[index]
            fault = check_file(self.path, entry, self.manifest, deep)
            on_checked(entry.size_bytes)
            return fault

        with ThreadPoolExecutor(workers or min(8, (os.cpu_count() or 1) * 2)) as pool:
            faults = tuple(fault for fault in pool.map(check, wanted) if fault)
        size = sum(self.entries[index].size_bytes for index in wanted)
        return VerifyReport(len(wanted), size, deep, faults)

    def repair(self, report: VerifyReport) -> list[int]:
        """Move what is bad into ``quarantine/`` and mark it to be redone.

        What was extracted again since the report was made stays. Returns the indices, which
        the next extraction takes up again.
        """
        reported = {fault.index: self.entries[fault.index].entry for fault in report.faults}
        moved = []
        with StoreWriter(self.path, self.manifest) as writer:
            self.ledger = self._read_ledger()
            for fault in report.faults:
                entry = self.entries.get(fault.index)
                if entry is None or entry.entry != reported[fault.index]:
                    continue
                if check_file(self.path, entry, self.manifest, report.deep) is not None:
                    writer.revoke(entry, f"{fault.check}: {fault.detail}")
                    moved.append(fault.index)
        self.ledger = self._read_ledger()
        return moved


def _as_tensor(array: np.ndarray) -> "torch.Tensor":
    """A tensor over a read-only map; bf16 travels as uint16 bits."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the memory is read-only: it is
        tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor
