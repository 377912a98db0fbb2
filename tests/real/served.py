"""A tiny model on a real server, and whether what came of it is what transformers computes."""

from pathlib import Path
from typing import NamedTuple

import torch
from make.dumps import BOUNDARIES
from make.models import NUM_LAYERS
from make.reference import reference_states, relative_errors

from hslib import demo
from hslib.dataset import Sample
from hslib.parameters import ExtractionParameters
from hslib.server.client import ServerClient
from hslib.server.dumps import Dump, DumpDir, request_id
from hslib.server.plugin_info import Expected
from hslib.server.validate import validate
from hslib.store import Store

EXPECTED = Expected(BOUNDARIES, hidden_size=64)


class Served(NamedTuple):
    model: Path
    client: ServerClient
    dumps: DumpDir

    def dump(self, samples: list[Sample], attempt: int = 1) -> list[Dump]:
        """Send samples in one request and load their validated dumps."""
        rids = [request_id(sample, attempt) for sample in samples]
        self.client.prefill([sample.input_ids for sample in samples], rids)
        for rid, sample in zip(rids, samples, strict=True):
            self.dumps.wait(rid, 10)
            validate(self.dumps.load(rid), sample, EXPECTED)
        return [self.dumps.load(rid) for rid in rids]


def assert_is_reference(model: Path, sample: Sample, dump: Dump) -> None:
    """Each captured state is nearest, by far, to the reference state it claims to be."""
    references = reference_states(model, sample.input_ids)
    states = torch.from_numpy(dump.hidden_states.copy()).view(torch.bfloat16)
    for number, boundary in enumerate((*BOUNDARIES, NUM_LAYERS)):
        errors = relative_errors(states[:, number], references)
        own = errors.pop(boundary)
        assert own < 0.03, f"boundary {boundary}: {own:.4f}"
        assert min(errors) > 5 * own, f"boundary {boundary}: {own:.4f}, another {min(errors):.4f}"


def assert_demo_is_reference(store: Store) -> None:
    """By the median token: a mixture of experts decides single routing ties the other way."""
    boundaries = store.manifest.boundaries
    for index in (0, 17, 100, len(store) - 1):
        stored = store[index]
        references = reference_states(demo.model_path(), stored.input_ids.numpy())
        for number, boundary in enumerate((*boundaries, store.manifest.num_layers)):
            found = stored.hidden_states[:, number].float()
            errors = [
                float(((found - r).norm(dim=-1) / r.norm(dim=-1)).median()) for r in references
            ]
            own = errors.pop(boundary)
            assert own < 0.03
            assert min(errors) > 5 * own


def assert_is_the_models(wanted: ExtractionParameters, every: int) -> None:
    """The whole store by its checksums, and some samples against transformers."""
    store = Store(wanted.store_path)
    assert store.verify(deep=True).clean
    for index in list(store.entries)[::every]:
        sample = store[index]
        references = reference_states(Path(wanted.model_path), sample.input_ids.numpy())
        for boundary in BOUNDARIES:
            errors = relative_errors(sample.layer(boundary), references)
            assert errors[boundary] < 0.03
            assert min(errors[:boundary] + errors[boundary + 1 :]) > 5 * errors[boundary]
