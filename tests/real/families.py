"""One family against transformers on a real server: alone, in a batch, in chunks.

The captured states of each boundary, of boundary n and of the final state are held against
transformers' own, and against every other boundary's: the negative control.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from make.reference import reference_last, reference_states, relative_errors
from make.rows import random_sample

from hslib.dataset import Sample
from hslib.server import launch as server
from hslib.server.dumps import DumpDir, request_id
from hslib.server.validate import validate

BOUNDARIES = (2, 3, 5, 6)  # of six layers: the last is the last layer's output before the norm
LAYERS = ",".join(map(str, BOUNDARIES))
CHUNK = 64
ROWS = {"alone": (50,), "in a batch": (17, 9, 17, 1, 30, 17), "in chunks": (200,)}
TABLE = Path(__file__).parents[2] / "patches" / "families.json"


@dataclass(frozen=True)
class Measured:
    """What one tiny model of a family showed; the largest of all rows and states."""

    family: str
    architecture: str
    seams: list[str]  # that were proven, of the boundaries before the last
    witness: float  # of the stored states, as the server measured it
    errors: dict[str, float]  # against transformers, by how the rows were sent
    nearest: float  # of any other boundary, by the own error's multiple
    reason: str = ""  # why it was refused
    note: str = field(default="", compare=False)

    @property
    def error(self) -> float:
        return max(self.errors.values(), default=float("inf"))


def measure(family: str, model: Path, state: server.ServerState) -> Measured:
    """Send rows in three ways and compare every stored state."""
    dumps = DumpDir(state.dump_dir)
    plugin = dumps.plugin()
    assert plugin is not None
    errors: dict[str, float] = {}
    witness, nearest, index = 0.0, float("inf"), 0
    with server.client_of(state) as client:
        for how, lengths in ROWS.items():
            samples = [random_sample(index + n, length) for n, length in enumerate(lengths)]
            index += len(samples)
            rids = [request_id(sample, 1) for sample in samples]
            client.prefill([sample.input_ids for sample in samples], rids)
            for sample, rid in zip(samples, rids, strict=True):
                dumps.wait(rid, 60)
                dump = dumps.load(rid)
                validate(dump, sample, plugin.expected)
                own, other = compare(model, sample, dump.hidden_states)
                errors[how] = max(errors.get(how, 0.0), own)
                nearest = min(nearest, other)
                witness = max(witness, *(layer.witness or 0.0 for layer in dump.meta.layers))
                dumps.remove(rid)
    seams = {c.seam for c in plugin.capture[: len(BOUNDARIES) - 1]}
    return Measured(family, plugin.model_class, sorted(seams), witness, errors, nearest)


def compare(model: Path, sample: Sample, states: np.ndarray) -> tuple[float, float]:
    """(the largest error of a state, how many times farther the nearest other boundary is)."""
    references = reference_states(model, sample.input_ids)
    *before, final = references
    everything = [*before, reference_last(model, sample.input_ids), final]
    wanted = [*BOUNDARIES, len(everything) - 1]
    taken = torch.from_numpy(states.copy()).view(torch.bfloat16)
    worst, nearest = 0.0, float("inf")
    for number, place in enumerate(wanted):
        errors = relative_errors(taken[:, number], everything)
        own = errors.pop(place)
        worst = max(worst, own)
        nearest = min(nearest, min(errors) / max(own, 1e-4))
    return worst, nearest


def read_table() -> dict[str, dict[str, Any]]:
    """Rows of what was run, by family."""
    return {row["family"]: row for row in json.loads(TABLE.read_text())} if TABLE.exists() else {}


def write_row(measured: Measured) -> None:
    """Add or replace a family's row."""
    rows = read_table()
    note = rows.get(measured.family, {}).get("note", "")
    rows[measured.family] = asdict(measured) | {"note": note}
    lines = ",\n ".join(json.dumps(rows[name]) for name in sorted(rows))
    TABLE.write_text(f"[\n {lines}\n]\n")
