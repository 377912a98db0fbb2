"""The one way to write to a store: file by temporary name, fsync, rename, then the journal line."""

import dataclasses
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hslib.errors import JobError
from hslib.journal import Entry, Journal, JournalMark, journal_name
from hslib.lock import Lock
from hslib.manifest import Manifest, write_or_check_manifest
from hslib.samplefile import sample_file, sample_header
from hslib.tensorfile import LARGE, PAGE

if TYPE_CHECKING:
    import xxhash

    from hslib.dataset import Sample
    from hslib.dump import Dump


class StoreWriter:
    """The one way to write: files by temporary name, fsync and rename, then the journal line.

    Any number of threads may call :meth:`put`. One process a shard, and one a replica of its job.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        shard_index: int = 0,
        num_shards: int = 1,
        replica: int | None = None,
    ) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        name = journal_name(shard_index, num_shards, replica)
        self._lock = lock_of(path / name)
        self._lock.acquire()
        try:
            _refuse_other_splits(path, num_shards)
            self.manifest = write_or_check_manifest(path, manifest)
            shard = f".{shard_index}-of-{num_shards}"
            own = "" if replica is None else f".replica-{replica}"
            self._suffix = f"{shard}{own}.tmp"
            # of a killed job of this shard, which the lock shows is gone, and of its replicas
            for leftover in path.glob(f"samples/*/.*{shard}{own or '*'}.tmp"):
                leftover.unlink(missing_ok=True)
            self._journal = Journal(path / name)
        except BaseException:
            self._lock.release()
            raise

    @property
    def mark(self) -> JournalMark:
        """Where this writer's lines begin."""
        return self._journal.mark

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


def lock_of(journal: Path) -> Lock:
    """Held by whoever may write to a journal; free once that process is gone."""
    return Lock(journal.with_name(f".{journal.name}.lock"), f"{journal.name} of {journal.parent}")


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


def write_file(target: Path, parts: Iterable[bytes | memoryview], suffix: str) -> None:
    """Write ``parts`` to ``.{name}{suffix}`` beside ``target``, fsync, rename.

    Raises:
        OSError: with the temporary file removed.
    """
    temporary = target.with_name(f".{target.name}{suffix}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        fd = os.open(temporary, flags, 0o644)
    except FileNotFoundError:  # the first file of its folder
        target.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(temporary, flags, 0o644)
    try:
        try:
            offset = 0
            for part in parts:
                done = write_direct(temporary, part, offset)
                view = memoryview(part)[done:]
                offset += done
                while view:
                    count = os.pwrite(fd, view, offset)
                    view, offset = view[count:], offset + count
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.rename(target)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_direct(path: Path, part: bytes | memoryview, offset: int) -> int:
    """Write a large part's whole pages past the page cache; returns the bytes written.

    A dump's pages go to the disk as they are: without a second copy in memory, and without
    driving out what others keep there. What is small, not aligned, or on a file system that
    can't is left to the caller: 0 is returned. So is the rest when the disk gets full.
    """
    size = len(part) // PAGE * PAGE
    if size < LARGE or offset % PAGE or np.frombuffer(part, np.uint8).ctypes.data % PAGE:
        return 0
    view, done = memoryview(part)[:size], 0
    try:
        fd = os.open(path, os.O_WRONLY | os.O_DIRECT)
    except OSError:
        return 0
    try:
        while done < size and done % PAGE == 0:
            done += os.pwrite(fd, view[done:], offset + done)
    except OSError:
        return done // PAGE * PAGE
    finally:
        os.close(fd)
    return done
