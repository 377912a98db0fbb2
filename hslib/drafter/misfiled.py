"""The case study's failure made on purpose: sound files with another sample's states."""

from pathlib import Path

import numpy as np
import xxhash

from hslib.dataset import Sample
from hslib.store import Store, StoredSample, StoreWriter


def misfile(store: Store, path: Path) -> Store:
    """Copy a store so that each sample holds the states of the sample before it.

    Both are cut to the shorter of the two: no trainer takes rows and states of two lengths.
    Everything else is sound: the copy verifies.
    """
    indices = list(store.entries)
    with StoreWriter(path, store.manifest) as writer:
        done = Store(path).entries
        for position, index in enumerate(indices):
            if index not in done:
                _put(writer, store[index], store[indices[position - 1]])
    return Store(path)


def _put(writer: StoreWriter, own: StoredSample, other: StoredSample) -> None:
    import torch

    tokens = min(own.entry.num_tokens, other.entry.num_tokens)
    ids = own.input_ids[:tokens].numpy().astype(np.int32)
    mask = own.loss_mask[:tokens].numpy()
    bits = other.hidden_states[:tokens].view(torch.uint16).numpy()
    sample = Sample(own.entry.index, own.entry.id, ids, mask)
    states_hash = xxhash.xxh3_64(bits.data)
    writer.put(sample, bits, other.entry.layers, states_hash, 1, latency_s=0.0)
