"""Rows and datasets of them."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hslib import demo
from hslib.dataset import Sample


def random_sample(index: int, num_tokens: int, vocab_size: int = 512, seed: int = 0) -> Sample:
    rng = np.random.default_rng((seed, index))
    ids = rng.integers(3, vocab_size, num_tokens, dtype=np.int32)
    mask = rng.integers(0, 2, num_tokens, dtype=np.uint8)
    return Sample(index, f"row-{index}", ids, mask)


def write_rows(path: Path, samples: Sequence[Sample]) -> Path:
    """A JSONL dataset of these samples."""
    lines = [
        json.dumps(
            {"id": s.id, "input_ids": s.input_ids.tolist(), "loss_mask": s.loss_mask.tolist()}
        )
        for s in samples
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def demo_samples(count: int, longest: int = 300) -> list[Sample]:
    """The demo's first rows of at most ``longest`` tokens, under their own indices."""
    found = []
    for index, line in enumerate(demo.dataset_path().read_text("utf-8").splitlines()):
        row = json.loads(line)
        if len(row["input_ids"]) <= longest:
            ids, mask = np.array(row["input_ids"], np.int32), np.array(row["loss_mask"], np.uint8)
            found.append(Sample(index, row["id"], ids, mask))
    return found[:count]
