"""The case study's failure made on purpose: right files, wrong sample's states in them."""

from pathlib import Path

import numpy as np
import torch
import xxhash

from hslib.dataset import Sample
from hslib.server.dumps import Dump, DumpMeta
from hslib.store.reader import Store, StoredSample
from hslib.store.writer import StoreWriter


def misfile(store: Store, path: Path, lag: int = 1) -> Store:
    """Copy a store so that every sample holds the states of the one ``lag`` before it.

    Where these were longer they are cut, as that job did; where they were shorter the row is,
    since no trainer takes both lengths. Everything else is sound: the copy verifies.
    """
    indices = list(store.entries)
    with StoreWriter(path, store.manifest) as writer:
        done = Store(path).entries
        for position, index in enumerate(indices):
            if index not in done:
                _put(writer, store[index], store[indices[position - lag]])
    return Store(path)


def _put(writer: StoreWriter, own: StoredSample, other: StoredSample) -> None:
    tokens = min(own.entry.num_tokens, other.entry.num_tokens)
    ids = own.input_ids[:tokens].numpy().astype(np.int32)
    mask = own.loss_mask[:tokens].numpy()
    bits = other.hidden_states[:tokens].view(torch.uint16).numpy()
    meta = DumpMeta(
        rid=f"misfiled-{own.entry.index}",
        num_tokens=tokens,
        boundaries=own.boundaries,
        hidden_size=bits.shape[-1],
        dtype="bfloat16",
        chunks=((0, tokens),),
        checksums={},
        layers=tuple(other.entry.layers),
        pid=0,
        plugin_version="",
        sglang_version="",
    )
    sample = Sample(own.entry.index, own.entry.id, ids, mask)
    dump = Dump(meta.rid, Path(), ids, bits, meta)
    writer.put(sample, dump, xxhash.xxh3_64(bits.data), attempts=1, latency_s=0.0)
