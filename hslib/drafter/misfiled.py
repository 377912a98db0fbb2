"""The case study's failure made on purpose: right files, wrong sample's states in them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from hslib.dataset import Sample
from hslib.store import Store, StoredSample, StoreWriter


@dataclass(frozen=True)
class _Misfiled:
    hidden_states: np.ndarray
    layers: list[dict[str, Any]]

    def layer_numbers(self) -> list[dict[str, Any]]:
        return self.layers


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
    sample = Sample(own.entry.index, own.entry.id, ids, mask)
    states_hash = xxhash.xxh3_64(bits.data)
    writer.put(sample, _Misfiled(bits, other.entry.layers), states_hash, 1, latency_s=0.0)
