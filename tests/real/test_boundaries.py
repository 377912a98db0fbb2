"""All boundaries, and none, on real servers: each state against transformers', and its readers."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from make.jobs import run
from make.models import NUM_LAYERS
from make.reference import reference_last, reference_states, relative_errors
from make.training import with_mtp_layer
from real.running import parameters_for
from real.servers import end_server
from safetensors.torch import load_file

from hslib.errors import ExportError
from hslib.export import SpeculatorsFormat, export_store
from hslib.server import launch as server
from hslib.stats import measure
from hslib.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

LIMIT = 0.025


def references_of(model: Path, ids: torch.Tensor) -> list[torch.Tensor]:
    """transformers' states by boundary, 0 to n, and the final state."""
    *before, final = reference_states(model, ids.numpy())
    return [*before, reference_last(model, ids.numpy()), final]


def of_size_one(states: torch.Tensor) -> torch.Tensor:
    """float32 [T, H], each token's state of norm 1."""
    return torch.nn.functional.normalize(states.float(), dim=-1)


def test_every_boundary_of_gemma_3_is_transformers_own(
    model_of: Callable[[str], Path], start_server: Callable[..., server.ServerState], tmp_path: Path
) -> None:
    model = model_of("gemma3")
    state = start_server(model, layers="all")
    wanted = parameters_for(state, model, tmp_path, 12, layers="all")
    assert run(wanted).is_whole
    end_server(state)
    store = Store(wanted.store_path)
    assert store.verify(deep=True).clean
    assert store.manifest.boundaries == tuple(range(1, NUM_LAYERS + 1))
    assert store.manifest.unwitnessed == {}
    for sample in store:
        references = references_of(model, sample.input_ids)
        for place in range(1, NUM_LAYERS + 2):
            errors = relative_errors(sample.hidden_states[:, place - 1], references)
            own = errors.pop(place)
            assert own < LIMIT, f"row {sample.entry.index}, state {place}: {own:.4f}"
            assert min(errors) > 5 * own, f"row {sample.entry.index}, state {place}"


def test_the_final_state_alone_is_stored_measured_and_exported_where_that_suffices(
    model_of: Callable[[str], Path], start_server: Callable[..., server.ServerState], tmp_path: Path
) -> None:
    model = model_of("qwen3")
    state = start_server(model, layers="none")
    wanted = parameters_for(state, model, tmp_path, 12, layers="none")
    assert run(wanted).is_whole
    end_server(state)
    store = Store(wanted.store_path)
    assert store.verify(deep=True).clean
    assert store.manifest.state_names == ("final",)
    for sample in store:
        assert sample.hidden_states.shape == (sample.entry.num_tokens, 1, 64)
        errors = relative_errors(sample.final, references_of(model, sample.input_ids))
        own = errors.pop()
        assert own < LIMIT and min(errors) > 5 * own
    assert measure(store).states == ("final",)
    with pytest.raises(ExportError, match=r"eagle3 reads .*, the store has 0"):
        export_store(store, tmp_path / "eagle3", SpeculatorsFormat("eagle3"), model)
    of_mtp = with_mtp_layer(Path(shutil.copytree(model, tmp_path / "model")))
    report = export_store(store, tmp_path / "mtp", SpeculatorsFormat("mtp"), of_mtp)
    assert (report.rows, report.boundaries) == (12, ())
    for row, sample in enumerate(store):
        last = reference_last(model, sample.input_ids.numpy())
        states = load_file(tmp_path / "mtp" / SpeculatorsFormat("mtp").file(row))["hidden_states"]
        assert states.shape == (sample.entry.num_tokens, 1, 64)
        # before the norm but for each token's size, which the norm takes away
        assert relative_errors(of_size_one(states[:, 0]), [of_size_one(last)])[0] < LIMIT
