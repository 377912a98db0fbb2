"""A store as SpecForge reads it: through SpecForge's own reader and normaliser.

SpecForge's pins are for another SGLang, so it is no requirement of this project:
``pip install --no-deps specforge==0.2.0`` is enough for what is imported here.
"""

import importlib.util
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from make.reference import load_reference
from make.rows import demo_samples
from make.stores import model_store

from hslib import demo
from hslib.errors import ExportError
from hslib.export.export import export_store
from hslib.export.specforge import SpecForgeFormat
from hslib.model import read_head
from hslib.store import Store

BOUNDARIES = (2, 5, 7)

needs_specforge = pytest.mark.skipif(
    importlib.util.find_spec("specforge") is None,
    reason="SPECFORGE IS ABSENT, so its own reader was NOT tried: "
    "pip install --no-deps specforge==0.2.0",
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("specforge") / "store"
    return model_store(path, demo.model_path(), demo_samples(8, 120), BOUNDARIES)


@pytest.fixture(scope="module")
def export(store: Store) -> Path:
    out = store.path.parent / "export"
    export_store(store, out, SpecForgeFormat(), demo.model_path(), draft_vocab_size=100)
    return out


@needs_specforge
def test_specforges_reader_returns_what_the_store_holds(store: Store, export: Path) -> None:
    from specforge.algorithms.eagle3.data import normalize_offline_sample
    from specforge.runtime.data_plane.feature_store import LocalFeatureStore
    from specforge.runtime.data_plane.offline_reader import OfflineManifestReader

    settings = (export / "specforge.yaml").read_text()
    reader = OfflineManifestReader(str(export / "hidden_states"), validate_files=True)
    assert str(export / "hidden_states") in settings
    refs, features = reader.read(), LocalFeatureStore()
    assert len(refs) == len(store)
    for ref, sample in zip(refs, store, strict=True):  # fewer than ten: path order is row order
        raw, handle = features.get(ref)
        item = normalize_offline_sample(raw, max_len=4096)
        assert torch.equal(item["input_ids"][0], sample.input_ids)
        assert item["loss_mask"][0, :-1].tolist() == sample.loss_mask[:-1].tolist()
        assert torch.equal(item["hidden_state"][0], sample.hidden_states[:, :-1].flatten(1))
        assert torch.equal(item["target"][0], sample.final)
        features.release(handle)


def test_files_have_the_native_names_types_and_shapes(store: Store, export: Path) -> None:
    assert SpecForgeFormat().file(4001) == "hidden_states/rows_4000-6000/data_4001.ckpt"
    for row, sample in enumerate(store):
        raw = torch.load(export / SpecForgeFormat().file(row), weights_only=True, mmap=True)
        tokens = sample.entry.num_tokens
        found = {name: (value.dtype, tuple(value.shape)) for name, value in raw.items()}
        assert found == {
            "input_ids": (torch.int64, (tokens,)),
            "loss_mask": (torch.int64, (tokens,)),
            "aux_hidden_state": (torch.bfloat16, (1, tokens, 288)),
            "hidden_state": (torch.bfloat16, (1, tokens, 96)),
        }
        assert all(value.is_contiguous() for value in raw.values())
        assert raw["loss_mask"].tolist() == sample.loss_mask.tolist()


def test_specforges_targets_are_the_models_own_distribution(store: Store, export: Path) -> None:
    head = read_head(demo.model_path())
    reference = load_reference(demo.model_path())
    for row in range(len(store)):
        raw = torch.load(export / SpecForgeFormat().file(row), weights_only=True)
        ours = (raw["hidden_state"][0].float() @ head.T).log_softmax(-1)
        with torch.no_grad():
            own = reference(raw["input_ids"][None]).logits[0].float().log_softmax(-1)
        assert float((own.exp() * (own - ours)).sum(-1).mean()) < 1e-3


@needs_specforge
def test_the_vocabulary_map_is_the_one_that_specforge_would_make(export: Path) -> None:
    """But for its order among tokens of equal count, which it leaves to chance."""
    from specforge.data.preprocessing import process_token_dict_to_mappings
    from specforge.training.vocab_mapping import count_effective_feature_tokens

    counts = count_effective_feature_tokens(str(export / "hidden_states"))
    ordered = Counter(dict(sorted(counts.items())))  # most_common keeps this order among equals
    d2t, t2d = process_token_dict_to_mappings(ordered, 100, 768)
    ours = torch.load(export / "vocab_mapping/vocab_mapping.pt", weights_only=True)
    assert torch.equal(ours["d2t"], d2t)
    assert torch.equal(ours["t2d"], t2d)


@needs_specforge
def test_the_settings_are_such_that_specforge_takes(export: Path) -> None:
    from specforge.algorithms.model_providers import resolve_eagle_capture_layers
    from specforge.config import load_config

    config = load_config(str(export / "specforge.yaml"), [])
    draft = json.loads((export / "draft_config.json").read_text())
    assert config.mode == "offline"
    target = SimpleNamespace(num_hidden_layers=10)
    assert resolve_eagle_capture_layers(config, draft, target) == [1, 4, 6]
    config.model.aux_hidden_state_layer_ids = None
    assert resolve_eagle_capture_layers(config, draft, target) == [1, 4, 6]
    assert (draft["vocab_size"], draft["draft_vocab_size"]) == (768, 100)


def test_a_store_before_the_norm_is_normed(store: Store, tmp_path: Path) -> None:
    """What the speculators side undoes, done: both sides give one state."""
    from hslib.model import read_final_norm

    norm = read_final_norm(demo.model_path())
    pre = model_store(
        tmp_path / "s",
        demo.model_path(),
        demo_samples(2, 60),
        BOUNDARIES,
        change=lambda states: torch.cat([states[:, :-1], 3 * norm.unnormed(states[:, -1:])], 1),
        final_norm="pre",
    )
    export_store(pre, tmp_path / "e", SpecForgeFormat(), demo.model_path())
    raw = torch.load(tmp_path / "e" / SpecForgeFormat().file(0), weights_only=True)
    index = next(iter(pre)).entry.index
    torch.testing.assert_close(
        raw["hidden_state"][0].float(), store[index].final.float(), rtol=2**-6, atol=1e-6
    )


def test_other_than_three_aux_layers_are_refused(tmp_path: Path) -> None:
    two = model_store(tmp_path / "s", demo.model_path(), demo_samples(1, 60), (2, 5))
    with pytest.raises(ExportError, match="exactly three aux layers, the store has 2"):
        export_store(two, tmp_path / "e", SpecForgeFormat(), demo.model_path())
