"""A store of a model's own states."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from make.dumps import put_dump
from make.reference import reference_states

from hslib.dataset import Sample
from hslib.model import read_model
from hslib.server.dumps import DumpDir
from hslib.server.plugin_info import Expected
from hslib.server.validate import validate
from hslib.store import Manifest, Store, StoreWriter


def model_store(
    path: Path,
    model_path: Path,
    samples: Sequence[Sample],
    boundaries: Sequence[int],
    change: Callable[[torch.Tensor], torch.Tensor] = lambda states: states,
    **manifest: Any,
) -> Store:
    """A store of transformers' own states of these samples: what a right server would dump.

    Args:
        change: of each sample's states bf16 [T, L, H]; a fault to plant.
    """
    model = read_model(model_path)
    facts = {
        "boundaries": tuple(boundaries),
        "hidden_size": model.hidden_size,
        "num_layers": model.num_layers,
        "vocab_size": model.vocab_size,
        "model_class": model.architecture,
        "model_path": str(model_path),
        "model_config_hash": model.config_hash,
        "tokenizer_digest": "",
        "dataset_path": "rows.jsonl",
        "dataset_digest": "",
        "sglang_version": "",
        "plugin_version": "",
        "server": {},
    }
    expected = Expected(tuple(boundaries), model.hidden_size)
    dumps = DumpDir(path.with_name(f"{path.name}-dumps"))
    with StoreWriter(path, Manifest(**{**facts, **manifest})) as writer:
        for sample in samples:
            by_boundary = reference_states(model_path, sample.input_ids)
            states = torch.stack([by_boundary[b] for b in (*boundaries, -1)], 1).bfloat16()
            put_dump(dumps.root, "d", sample.input_ids, change(states), boundaries)
            dump = dumps.load("d")
            writer.put(sample, dump, validate(dump, sample, expected), 1, 0.01)
    return Store(path)
