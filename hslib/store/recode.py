"""A store's samples in another encoding, in a store of their own; the source is only read."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from hslib.dataset import Sample
from hslib.errors import StoreError
from hslib.store.encoding import CODECS, Encoding
from hslib.store.entry import Entry
from hslib.store.manifest import Manifest
from hslib.store.reader import Store, StoredSample
from hslib.store.sample_file import check_file
from hslib.store.sizes import size_words, stored_bytes
from hslib.store.url import StoreUrl
from hslib.store.writer import StoreWriter


@dataclass(frozen=True)
class RecodeReport:
    """A finished copy; ``copied``: in this run, the others were there."""

    samples: int
    copied: int
    size_before: int
    size_after: int
    encoding: str  # in words

    def sentence(self) -> str:
        saved = 1 - self.size_after / max(1, self.size_before)
        return (
            f"{self.samples:,} samples ({self.copied:,} copied now): "
            f"{size_words(self.size_before)} are {size_words(self.size_after)} now "
            f"({abs(saved):.1%} {'saved' if saved >= 0 else 'more'}). {self.encoding}."
        )


def recode_store(
    store: Store,
    out: StoreUrl,
    encoding: Encoding,
    max_encoding_error: float,
    workers: int = 0,
    on_sample: Callable[[int], None] = lambda _size_bytes: None,
) -> RecodeReport:
    """Copy every sample, and the journal's failures; run again to resume or to add new samples.

    Each sample is compared with its journal line before it is encoded, and read back after it was
    written.

    Args:
        out: a new directory or URL, or the one to go on with.
        workers: threads; 0 = a few. Each holds one sample.
        on_sample: called with the bytes of each sample that is done, as the source keeps it.

    Raises:
        EncodingError: a sample would lose more than ``max_encoding_error``.
        StoreError: a sample is not sound, ``out`` is another store or has no room, or the source
            has lost bits already.
    """
    _refuse(store, out, encoding)
    manifest = store.manifest.model_copy(update={"encoding": encoding})
    with StoreWriter(out, manifest, max_encoding_error=max_encoding_error) as writer:
        copy = Store(out)
        _refuse_other(copy, encoding)
        todo = [e for e in store.entries.values() if not _is_copy(e, copy.entries.get(e.index))]
        _require_room(writer, manifest, todo)
        for entry in _new_failures(store, copy):
            writer.record(entry)

        def work(entry: Entry) -> None:
            if entry.index in copy.entries:
                writer.revoke(copy.entries[entry.index], "the source has another sample here")
            _copy(writer, store.checked(entry.index), manifest)
            on_sample(entry.size_bytes)

        with ThreadPoolExecutor(workers or min(8, 2 * (os.cpu_count() or 1))) as pool:
            futures = [pool.submit(work, entry) for entry in todo]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    copy = Store(out)
    before, after = (sum(e.size_bytes for e in s.entries.values()) for s in (store, copy))
    return RecodeReport(len(copy), len(todo), before, after, copy.encoding_sentence())


def _refuse(store: Store, out: StoreUrl, encoding: Encoding) -> None:
    if str(out) == str(store.path):
        raise StoreError(
            "a store can't be recoded in place", path=str(out), fix="name another folder"
        )
    lossy = [index for index, e in store.entries.items() if CODECS[e.encoding].is_lossy]
    if lossy and CODECS[encoding].is_lossy:
        raise StoreError(
            f"{len(lossy)} samples are in {store.entries[lossy[0]].encoding} already: once more "
            "would lose more",
            indices=lossy[:20],
            fix="copy the folder, or recode the store that they came from",
        )


def _refuse_other(copy: Store, encoding: Encoding) -> None:
    """A copy that was begun in another encoding is not gone on with."""
    others = {entry.encoding for entry in copy.entries.values()} - {encoding}
    if others:
        raise StoreError(
            f"{copy.path} holds samples in {', '.join(sorted(others))}, {encoding} was asked for",
            fix=f"name a new folder, or go on with --encoding {min(others)}",
        )


def _is_copy(source: Entry, copied: Entry | None) -> bool:
    """Whether a line of the copy speaks of the same extraction of the same row. Pure."""
    if copied is None:
        return False
    names = ("id", "digest", "mask_digest", "attempts", "latency_s", "finished_at")
    return all(getattr(source, name) == getattr(copied, name) for name in names) and (
        _measured(source) == _measured(copied)
    )


def _measured(entry: Entry) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in layer.items() if name != "encoding_error"}
        for layer in entry.layers
    ]


def _new_failures(store: Store, copy: Store) -> list[Entry]:
    found = {**store.journal_state.failed, **store.journal_state.rejected}
    known = {**copy.journal_state.failed, **copy.journal_state.rejected}
    return [e for i, e in found.items() if i not in known or known[i].entry != e.entry]


def _require_room(writer: StoreWriter, manifest: Manifest, todo: list[Entry]) -> None:
    tokens = sum(entry.num_tokens for entry in todo)
    needed = stored_bytes(tokens, len(todo), manifest.stored_bytes_per_token)
    free = writer.storage.free_bytes()
    if free is not None and needed > free:
        raise StoreError(
            f"the copy takes about {size_words(needed)}, its disk has {size_words(free)} free",
            path=str(writer.storage.url),
            fix="free space there, or name another disk",
        )


def _copy(writer: StoreWriter, stored: StoredSample, manifest: Manifest) -> None:
    source = stored.entry
    bits = stored.states.whole()
    entry = writer.put(
        Sample(
            source.index,
            source.id,
            stored.input_ids.numpy().astype(np.int32),
            stored.loss_mask.numpy(),
        ),
        bits,
        source.layers,
        xxhash.xxh3_64(bits.data),
        source.attempts,
        source.latency_s,
        source.finished_at,
    )
    fault = check_file(writer.storage, entry, manifest, deep=True)
    same_bits = CODECS[entry.encoding].is_lossy or entry.checksum == source.checksum
    if fault is not None or not same_bits:
        raise StoreError(
            f"sample {source.index} did not come back as it was written: "
            + (f"{fault.check}: {fault.detail}" if fault else "its checksum is not the source's"),
            index=source.index,
            file=entry.file,
            fix="is that disk sound? Verify both stores",
        )
