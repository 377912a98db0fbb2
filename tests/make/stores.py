"""Stores made without a server: through the real gate, past it, and of a model's own states."""

import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from make.dumps import BOUNDARIES, EXPECTED, put_dump, write_dump
from make.reference import reference_last, reference_states

from hslib import demo
from hslib.dataset import Dataset, Limits, Sample
from hslib.model import read_model
from hslib.server.dumps import Dump, DumpDir
from hslib.server.plugin_info import Expected
from hslib.server.validate import validate
from hslib.store import Encoding, Entry, Manifest, Store, StoreWriter

Row = tuple[Sample, torch.Tensor]  # states bf16 [T, L, H]
DEMO_BOUNDARIES = (2, 5, 7)


def manifest(**changes: Any) -> Manifest:
    """What a store of the tiny Llama says of itself."""
    facts: dict[str, Any] = {
        "boundaries": BOUNDARIES,
        "hidden_size": 16,
        "num_layers": 6,
        "vocab_size": 512,
        "model_class": "LlamaForCausalLM",
        "model_path": "model",
        "model_config_hash": "c0",
        "tokenizer_digest": "",
        "dataset_path": "rows.jsonl",
        "dataset_digest": "d0",
        "sglang_version": "0.5.23",
        "plugin_version": "1.0.0",
        "server": {"tp_size": 1},
    }
    return Manifest(**{**facts, **changes})


# --- through the gate ---------------------------------------------------------------------


def put(writer: StoreWriter, sample: Sample, dump: Dump, expected: Expected = EXPECTED) -> Entry:
    return writer.put(sample, *dump.captured(), validate(dump, sample, expected), 1, 0.01)


def store_samples(
    place: str | Path,
    dumps: Path,
    samples: Sequence[Sample],
    encoding: Encoding = "plain",
    **writer: Any,
) -> list[torch.Tensor]:
    """Store samples with made-up states, dumped one by one; returns the states."""
    states = []
    with StoreWriter(place, manifest(encoding=encoding), **writer) as writing:
        for sample in samples:
            states.append(write_dump(dumps, "d", sample))
            put(writing, sample, DumpDir(dumps).load("d"))
    return states


def model_store(
    path: Path,
    model_path: Path,
    samples: Sequence[Sample],
    boundaries: Sequence[int],
    change: Callable[[torch.Tensor], torch.Tensor] = lambda states: states,
    keep_final: bool = True,
    **facts: Any,
) -> Store:
    """A store of transformers' own states of these samples: what a right server would dump.

    Args:
        change: of each sample's states bf16 [T, L, H]; a fault to plant.
        keep_final: whether the final state is stored.
        facts: of the manifest.
    """
    model = read_model(model_path)
    known = {
        "boundaries": tuple(boundaries),
        "hidden_size": model.hidden_size,
        "num_layers": model.num_layers,
        "vocab_size": model.vocab_size,
        "model_class": model.architecture,
        "model_path": str(model_path),
        "model_config_hash": model.config_hash,
    }
    expected = Expected(tuple(boundaries), model.hidden_size, stores_final=keep_final)
    dumps = DumpDir(path.with_name(f"{path.name}-dumps"))
    with StoreWriter(path, manifest(**{**known, **facts})) as writer:
        for sample in samples:
            *by_boundary, final = reference_states(model_path, sample.input_ids)
            if model.num_layers in boundaries:
                by_boundary.append(reference_last(model_path, sample.input_ids))
            chosen = [by_boundary[b] for b in boundaries] + [final] * keep_final
            states = torch.stack(chosen, 1).bfloat16()
            put_dump(dumps.root, "d", sample.input_ids, change(states), boundaries)
            dump = dumps.load("d")
            writer.put(sample, *dump.captured(), validate(dump, sample, expected), 1, 0.01)
    return Store(path)


def one_dump(dumps: Path, sample: Sample) -> Dump:
    """A dump that lies there under a name of its own."""
    write_dump(dumps, f"d{sample.index}", sample)
    return DumpDir(dumps).load(f"d{sample.index}")


def failure(index: int) -> Entry:
    return Entry(index=index, id=f"row-{index}", status="failed", reason="made by the test")


# --- past the gate: any states under any ids ----------------------------------------------


def write_store(
    path: Path,
    rows: Sequence[Row],
    boundaries: Sequence[int] = BOUNDARIES,
    encoding: Encoding = "plain",
) -> Store:
    """Dump, then store what was dumped; nothing is validated between."""
    dumps = DumpDir(path.parent / f"{path.name}-dumps")
    facts = manifest(
        boundaries=tuple(boundaries),
        hidden_size=rows[0][1].shape[2],
        encoding=encoding,
        num_layers=10,
        vocab_size=768,
        model_class="DeepseekV3ForCausalLM",
        server={},
    )
    with StoreWriter(path, facts) as writer:
        for sample, states in rows:
            put_dump(dumps.root, "d", sample.input_ids, states, boundaries)
            dump = dumps.load("d")
            states_hash = xxhash.xxh3_64(dump.hidden_states.data)
            writer.put(sample, *dump.captured(), states_hash, 1, 0.25)
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
