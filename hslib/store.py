"""Where validated samples live: read, verify, repair, and the one way to write.

::

    manifest.json                         what all samples have in common
    journal.jsonl                         a line a finished sample: the commit
    samples/00012/00012345.safetensors    input_ids, loss_mask, hidden_states
    quarantine/                           what repair() moved away

A file counts only if a live ``ok`` line of a journal names it.
"""

import dataclasses
import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from hslib.errors import JobError, StoreError
from hslib.journal import Entry, Journal, Ledger, combine, journal_name, read_journal
from hslib.lock import Lock
from hslib.manifest import Manifest, read_manifest, write_or_check_manifest
from hslib.tensorfile import TensorFileError, header_bytes, open_tensors

if TYPE_CHECKING:
    import torch

    from hslib.dataset import Sample
    from hslib.dump import Dump

SAMPLE_FORMAT = "hslib-sample-1"


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
class Fault:
    """Why a stored sample is not what its journal line says."""

    index: int
    path: str
    check: str
    detail: str


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


def sample_file(index: int) -> str:
    """Where a sample lives below the store."""
    return f"samples/{index // 1000:05d}/{index:08d}.safetensors"


def sample_header(entry: Entry, manifest: Manifest) -> bytes:
    """The exact header of a sample's file, from its journal line."""
    states = (entry.num_tokens, len(manifest.boundaries) + 1, manifest.hidden_size)
    tensors = {
        "hidden_states": ("BF16", states),
        "input_ids": ("I64", (entry.num_tokens,)),
        "loss_mask": ("U8", (entry.num_tokens,)),
    }
    metadata = {
        "format": SAMPLE_FORMAT,
        "index": str(entry.index),
        "id": entry.id,
        "digest": entry.digest,
        "boundaries": json.dumps(list(manifest.boundaries)),
        "checksum": entry.checksum,
    }
    return header_bytes(tensors, metadata)


def check_file(store: Path, entry: Entry, manifest: Manifest, deep: bool) -> Fault | None:
    """Compare one file with its journal line; None when all is well.

    Raises:
        OSError: it could not be read (too many open files, a disk's error): that says nothing
            of the sample, which must not be taken for bad.
    """
    path = store / entry.file

    def fault(check: str, detail: str) -> Fault:
        return Fault(entry.index, str(path), check, detail)

    try:
        size = path.stat().st_size
        if size != entry.size_bytes:
            return fault("size", f"{size} bytes, journal says {entry.size_bytes}")
        if not deep:
            return None
        file = open_tensors(path)
    except FileNotFoundError:
        return fault("exists", "the file is gone")
    except TensorFileError as error:
        return fault("readable", str(error))
    if file.header != sample_header(entry, manifest):
        return fault("header", "not the header that its journal line implies")
    checksum = xxhash.xxh3_64_hexdigest(file.data.data)
    if checksum != entry.checksum:
        return fault("checksum", f"{checksum}, journal says {entry.checksum}")
    ids = file.arrays["input_ids"].astype("<i4")
    if xxhash.xxh3_128_hexdigest(ids.data) != entry.digest:
        return fault("digest", "the ids are not the ones that were filed")
    return None


class StoreWriter:
    """The one way to write: files by temporary name, fsync and rename, then the journal line.

    Any number of threads may call :meth:`put`. One process a shard.
    """

    def __init__(
        self, path: Path, manifest: Manifest, shard_index: int = 0, num_shards: int = 1
    ) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        name = journal_name(shard_index, num_shards)
        self._lock = Lock(path / f".{name}.lock", f"shard {shard_index} of {num_shards} of {path}")
        self._lock.acquire()
        try:
            _refuse_other_splits(path, num_shards)
            self.manifest = write_or_check_manifest(path, manifest)
            self._suffix = f".{shard_index}-of-{num_shards}.tmp"
            for leftover in path.glob(f"samples/*/.*{self._suffix}"):
                leftover.unlink()  # of a killed job of this shard, which the lock shows is gone
            self._journal = Journal(path / name)
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._journal.close()
        self._lock.release()

    def put(
        self,
        sample: "Sample",
        dump: "Dump",
        states_hash: "xxhash.xxh3_64",
        attempts: int,
        latency_s: float,
    ) -> Entry:
        """Store a validated dump and commit it; returns when both are durable.

        Args:
            states_hash: the running hash over ``dump.hidden_states`` that validation made.

        Raises:
            OSError: the disk is full, read-only or gone. Nothing is committed then.
        """
        tail = sample.input_ids.astype("<i8").tobytes() + sample.loss_mask.tobytes()
        states_hash.update(tail)
        file = sample_file(sample.index)
        draft = Entry(
            index=sample.index,
            id=sample.id,
            status="ok",
            num_tokens=sample.num_tokens,
            digest=sample.digest,
            mask_digest=sample.mask_digest,
            file=file,
            checksum=states_hash.hexdigest(),
            attempts=attempts,
            latency_s=round(latency_s, 6),
            layers=[layer.model_dump() for layer in dump.meta.layers],
            finished_at=time.time(),
        )
        header = sample_header(draft, self.manifest)
        parts: list[bytes | memoryview] = [
            header,
            dump.hidden_states.reshape(-1).data.cast("B"),
            tail,
        ]
        entry = dataclasses.replace(draft, size_bytes=sum(len(part) for part in parts))
        target = self.path / file
        write_file(target, parts, self._suffix)
        self._journal.append(entry, target.parent)
        return entry

    def record(self, entry: Entry) -> None:
        """Commit a line that has no file: a failed or rejected row."""
        self._journal.append(entry)

    def revoke(self, entry: Entry, reason: str) -> None:
        """Take back an ``ok`` line and move its file, if any, into ``quarantine/``."""
        source = self.path / entry.file
        quarantine = self.path / "quarantine"
        quarantine.mkdir(exist_ok=True)
        self._journal.append(
            Entry(
                index=entry.index,
                id=entry.id,
                status="revoked",
                reason=reason,
                revokes=entry.entry,
                finished_at=time.time(),
            )
        )
        if source.exists():
            source.rename(quarantine / f"{source.stem}-{entry.entry}{source.suffix}")


def _refuse_other_splits(path: Path, num_shards: int) -> None:
    """Two jobs may write at once only if they split the rows in the same way.

    Raises:
        JobError: a job with another ``num_shards`` is at work; it might hold the same rows.
    """
    for file in path.glob(".journal*.lock"):
        split = int(file.name.split("-of-")[1][:5]) if "-of-" in file.name else 1
        if split == num_shards:
            continue
        try:
            with Lock(file, f"the store {path}"):
                continue  # its owner is gone
        except JobError as error:
            raise JobError(
                f"a job with num_shards = {split} is writing to this store, this one has "
                f"num_shards = {num_shards}: they could extract the same rows",
                fix="wait for it, or use the same num_shards",
                **error.fields,
            ) from error


def write_file(target: Path, parts: Sequence[bytes | memoryview], suffix: str) -> None:
    """Write ``parts`` to ``.{name}{suffix}`` beside ``target``, fsync, rename.

    Raises:
        OSError: with the temporary file removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}{suffix}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        try:
            for part in parts:
                view = memoryview(part)
                while view:
                    view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.rename(target)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
