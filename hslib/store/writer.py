"""Writing to a store: a sample's file first, then its line in the journal."""

import dataclasses
import math
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from hslib.errors import EncodingError, JobError
from hslib.store.contract import Storage
from hslib.store.encoding import CODECS
from hslib.store.entry import Entry, combine, journal_name
from hslib.store.manifest import Manifest, write_or_check_manifest
from hslib.store.sample_file import sample_header
from hslib.store.storage import open_storage

if TYPE_CHECKING:
    from hslib.dataset import Sample


class StoreWriter:
    """The only way to write to a store. A sample's file is whole before its journal line.

    Any number of threads may call :meth:`put`. One process per shard, and one per part of it.

    Args:
        manifest: of a new store, or one that the store's agrees with; samples are encoded as it
            says, whatever those that are there are.
        part: of the shard that this writer has; empty for the job that has the whole shard.
        max_encoding_error: the largest relative error (L2) of a token's state that a sample may
            lose by its encoding.

    Raises:
        JobError: another job writes this shard, or a part of it, or splits the rows otherwise.
        StoreError: the store holds states of another kind.
    """

    def __init__(
        self,
        path: str | Path,
        manifest: Manifest,
        shard_index: int = 0,
        num_shards: int = 1,
        part: str = "",
        max_encoding_error: float = math.inf,
    ) -> None:
        self._encoding, self._max_error = manifest.encoding, max_encoding_error
        self.storage = open_storage(path)
        self._closing, self._is_closed = threading.Lock(), False
        self._name = journal_name(shard_index, num_shards, part)
        who = f"part {part} of " if part else ""
        what = f"{who}shard {shard_index} of {num_shards} of {path}"
        self._lock = self.storage.lock(self._name, what)
        self._lock.acquire()
        try:
            _refuse_other_splits(self.storage, num_shards)
            if not part:
                _refuse_parts(self.storage, self._name)
            self.manifest = write_or_check_manifest(self.storage, manifest)
            shard = f".{shard_index}-of-{num_shards}"
            own = f".part-{part}" if part else ""
            # of its own: a thread that was abandoned may still write under the one before
            self._suffix = f"{shard}{own}.{secrets.token_hex(3)}.tmp"
            # the locks show that the writers of these files are gone, and their parts with them
            self.storage.sweep(f"{shard}{own}*.tmp")
            self._journal = self.storage.journal(self._name, self._lock)
        except BaseException:
            self._lock.release()
            raise

    def stored(self) -> dict[int, Entry]:
        """What this journal says is stored: for a part, what an earlier try at it committed."""
        return combine(self.storage.entries(self._name)).stored

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Write nothing more, whatever threads still have in hand."""
        with self._closing:
            self._is_closed = True
        self._journal.close()
        self._lock.release()

    def _rename(self, temporary: Path, target: Path) -> None:
        """A thread that outlives its job must not write over what the next job stored."""
        with self._closing:
            if self._is_closed:
                raise JobError("the store was closed before the sample was stored")
            temporary.rename(target)

    def put(
        self,
        sample: "Sample",
        states: np.ndarray,
        layers: list[dict[str, Any]],
        states_hash: xxhash.xxh3_64,
        attempts: int,
        latency_s: float,
        finished_at: float | None = None,
    ) -> Entry:
        """Store a validated dump and commit it; returns when both are durable.

        Args:
            states: validated; uint16 [T, L, H], the bits of bfloat16.
            layers: per state ``finite``, ``absmax``, ``mean_l2``, ``zero_share``, ``witness``.
            states_hash: the running hash over ``states`` that validation made.
            finished_at: unix seconds; None = now.

        Raises:
            EncodingError: the encoding would lose more of it than is allowed.
            StoreError: file or journal can't be written (the disk is full, read-only or gone), or
                an object store did not take the file.
            JobError: the lock on an object store was lost.
        """
        encoded = CODECS[self._encoding].encode(states)
        if encoded.decoded is not None:
            states_hash = xxhash.xxh3_64(encoded.decoded.data)
        layers = self._with_errors(sample, layers, encoded.errors)
        tail = sample.input_ids.astype("<i8").tobytes() + sample.loss_mask.tobytes()
        states_hash.update(tail)
        draft = Entry(
            index=sample.index,
            id=sample.id,
            status="ok",
            num_tokens=sample.num_tokens,
            digest=sample.digest,
            mask_digest=sample.mask_digest,
            encoding=self._encoding,
            checksum=states_hash.hexdigest(),
            attempts=attempts,
            latency_s=round(latency_s, 6),
            layers=layers,
            finished_at=time.time() if finished_at is None else finished_at,
        )
        parts = [*(tensor.bytes for tensor in encoded.tensors.values()), tail]
        if self._encoding != "plain":
            draft = dataclasses.replace(draft, file_checksum=_checksum(parts))
        described = {name: (t.dtype, t.shape) for name, t in encoded.tensors.items()}
        header = sample_header(draft, self.manifest, described)
        parts = [header, *parts]
        file = self.storage.sample_file(sample.index, draft.entry)
        size = sum(len(part) for part in parts)
        etag = self.storage.put(file, parts, self._suffix, self._rename)
        entry = dataclasses.replace(draft, file=file, size_bytes=size, etag=etag)
        self._journal.append(entry)
        return entry

    def _with_errors(
        self, sample: "Sample", layers: list[dict[str, Any]], errors: Sequence[float]
    ) -> list[dict[str, Any]]:
        """The layers' numbers with what the encoding lost of each; refused above the limit."""
        if not errors:
            return layers
        names = self.manifest.state_names
        worst = max(range(len(errors)), key=lambda number: errors[number])
        if not errors[worst] <= self._max_error:
            raise EncodingError(
                f"sample {sample.index} loses more than max_encoding_error allows in "
                f"{self._encoding}",
                index=sample.index,
                check="encoding error",
                state=names[worst],
                expected=f"up to {self._max_error:g}",
                got=errors[worst],
                fix="store it as lossless, or raise max_encoding_error",
            )
        lost = zip(layers, errors, strict=True)
        return [{**layer, "encoding_error": error} for layer, error in lost]

    def record(self, entry: Entry) -> None:
        """Commit a line without a file: a failed or rejected row."""
        self._journal.append(entry)

    def revoke(self, entry: Entry, reason: str) -> None:
        """Revoke an ``ok`` line, then move its file into ``quarantine/``."""
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
        file = PurePosixPath(entry.file)
        name = file.name if entry.entry in file.name else f"{file.stem}-{entry.entry}{file.suffix}"
        self.storage.move(entry.file, f"quarantine/{name}")


def _checksum(parts: Iterable[bytes | memoryview]) -> str:
    found = xxhash.xxh3_64()
    for part in parts:
        found.update(part)
    return found.hexdigest()


def _refuse_other_splits(storage: Storage, num_shards: int) -> None:
    """Two jobs may write at once only if they split the rows in the same way.

    Raises:
        JobError: a job with another ``num_shards`` is at work; it might hold the same rows.
    """
    for name in storage.locked():
        split = int(name.split("-of-")[1][:5]) if "-of-" in name else 1
        if split == num_shards:
            continue
        lock = storage.lock(name, f"the store {storage.url}")
        try:
            lock.acquire()
        except JobError as error:
            if "owner" not in error.fields:  # the file system can't lock
                raise
            raise JobError(
                f"a job with num_shards = {split} is writing to this store, this one has "
                f"num_shards = {num_shards}: they could extract the same rows",
                fix="wait for it, or use the same num_shards",
                **error.fields,
            ) from error
        lock.release()  # its owner is gone


def _refuse_parts(storage: Storage, journal: str) -> None:
    """A job may be gone before the tasks of its parts are: what they still commit would be redone.

    Raises:
        JobError: one of them is at work.
    """
    for name in storage.locked():
        if name.startswith(f"{journal.removesuffix('.jsonl')}-part-"):
            lock = storage.lock(name, f"{name} of {storage.url}")
            lock.acquire()
            lock.release()
