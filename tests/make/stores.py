"""Stores made by hand: any states under any ids, past the gate that would refuse them."""

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from make.dumps import BOUNDARIES, put_dump
from make.reference import reference_states

from hslib import demo
from hslib.dataset import Dataset, Limits, Sample
from hslib.server.dumps import DumpDir
from hslib.store import Manifest, Store, StoreWriter

Row = tuple[Sample, torch.Tensor]  # states bf16 [T, L, H]
DEMO_BOUNDARIES = (2, 5, 7)


def manifest(boundaries: Sequence[int], hidden_size: int, **changes: Any) -> Manifest:
    facts: dict[str, Any] = {
        "boundaries": tuple(boundaries),
        "hidden_size": hidden_size,
        "num_layers": 10,
        "vocab_size": 768,
        "model_class": "DeepseekV3ForCausalLM",
        "model_path": "model",
        "model_config_hash": "c0",
        "tokenizer_digest": "",
        "dataset_path": "rows.jsonl",
        "dataset_digest": "d0",
        "sglang_version": "0.5.23",
        "plugin_version": "1.0.0",
        "server": {},
    }
    return Manifest(**{**facts, **changes})


def write_store(path: Path, rows: Sequence[Row], boundaries: Sequence[int] = BOUNDARIES) -> Store:
    """Dump, then store what was dumped; nothing is validated between."""
    dumps = DumpDir(path.parent / f"{path.name}-dumps")
    with StoreWriter(path, manifest(boundaries, rows[0][1].shape[2])) as writer:
        for sample, states in rows:
            put_dump(dumps.root, "d", sample.input_ids, states, boundaries)
            dump = dumps.load("d")
            states_hash = xxhash.xxh3_64(dump.hidden_states.data)
            writer.put(sample, dump, states_hash, 1, 0.25)
    return Store(path)


@functools.cache
def demo_rows(count: int, max_tokens: int = 130) -> tuple[Row, ...]:
    """Short rows of the demo with the states that transformers computes, in bf16."""
    dataset = Dataset(demo.dataset_path(), Limits(768, max_tokens))
    samples = (row for row in dataset if isinstance(row, Sample))
    return tuple((s, _demo_states(s)) for s in itertools.islice(samples, count))


def _demo_states(sample: Sample) -> torch.Tensor:
    states = reference_states(demo.model_path(), sample.input_ids)
    chosen = [states[b] for b in DEMO_BOUNDARIES] + [states[-1]]
    return torch.stack(chosen, dim=1).to(torch.bfloat16)


def made_up_rows(count: int, hidden: int = 64, seed: int = 0) -> list[Row]:
    """Rows whose states follow from their ids, with noise of their own; 24 tokens or more."""
    rng = np.random.default_rng(seed)
    meanings = torch.from_numpy(rng.standard_normal((50, len(BOUNDARIES) + 1, hidden)))
    rows = []
    for index in range(count):
        length = 24 + index // 2 % 20  # two neighbours have the same length
        ids = rng.integers(0, 50, length).astype(np.int32)
        mask = (np.arange(length) >= length // 2).astype(np.uint8)
        noise = torch.from_numpy(rng.standard_normal((length, len(BOUNDARIES) + 1, hidden)))
        states = (meanings[torch.from_numpy(ids).long()] + 0.3 * noise).to(torch.bfloat16)
        rows.append((Sample(index, f"row-{index}", ids, mask), states))
    return rows
