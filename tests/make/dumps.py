"""Dumps made by the plugin's own writer."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from hs_dump.dump_file import DumpFile

from hslib.dataset import Sample
from hslib.server.dumps import DumpDir
from hslib.server.plugin_info import Expected

BOUNDARIES = (1, 3, 5)


EXPECTED = Expected(BOUNDARIES, hidden_size=16)


def write_dump(
    root: Path, name: str, sample: Sample, expected: Expected = EXPECTED, **meta: Any
) -> torch.Tensor:
    """A dump made by the plugin's own writer; returns its states, bf16 [T, L, H]."""
    shape = (sample.num_tokens, len(expected.boundaries) + 1, expected.hidden_size)
    generator = torch.Generator().manual_seed(sample.index)
    states = torch.randn(shape, generator=generator).to(torch.bfloat16)
    put_dump(root, name, sample.input_ids, states, **{"boundaries": expected.boundaries, **meta})
    return states


def put_dump(
    root: Path,
    name: str,
    input_ids: np.ndarray,
    states: torch.Tensor,
    boundaries: Sequence[int] = BOUNDARIES,
    witness: float | np.ndarray = 0.0025,
    **meta: Any,
) -> None:
    """Publish given states bf16 [T, L, H] as a dump; NaN for one that no layer testified to."""
    root.mkdir(parents=True, exist_ok=True)
    tokens, count, hidden = states.shape
    file = DumpFile(root, name, (tokens, count, hidden))
    file.append(torch.from_numpy(input_ids.astype(np.int64)), list(states.unbind(1)))
    file.witnessed(min(tokens, 4), np.full(count, witness))
    facts = {
        "rid": name,
        "boundaries": list(boundaries),
        "stores_final": states.shape[1] > len(boundaries),
        "pid": 1,
        "plugin_version": "1.0.0",
        "sglang_version": "0.5.23",
    }
    file.publish({**facts, **meta})


def proven(boundaries: Sequence[int]) -> dict[str, Any]:
    """What plugin.json says of states that their layers testified to."""
    witness = {"seam": "stage", "witness": "its norm", "error": 0.0025, "tolerance": 0.02}
    states = [*(f"boundary {boundary}" for boundary in boundaries), "final"]
    return {"proven": True, "capture": [{"state": state, **witness} for state in states]}


def rehash(root: Path, name: str) -> None:
    """Make a tampered dump's checksums agree again, so that only deeper checks can object."""
    path = root / name / "meta.json"
    meta = json.loads(path.read_text())
    dump = DumpDir(root).load(name)
    meta["checksums"]["hidden_states"] = xxhash.xxh3_64_hexdigest(dump.hidden_states.data)
    path.write_text(json.dumps(meta))
