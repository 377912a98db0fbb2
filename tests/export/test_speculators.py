"""A store as speculators reads it: through speculators' own loader, nothing shifted."""

import re
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from make.reference import load_reference
from make.rows import demo_samples
from make.stores import model_store

from hslib import demo, terminal
from hslib.drafter import eagle3 as drafter
from hslib.errors import ExportError
from hslib.export.export import export_store
from hslib.export.speculators import SpeculatorsFormat
from hslib.store import Store

BOUNDARIES = (2, 5, 7)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Eight short demo rows with transformers' own states."""
    path = tmp_path_factory.mktemp("speculators") / "store"
    return model_store(path, demo.model_path(), demo_samples(8, 120), BOUNDARIES)


@pytest.fixture(scope="module")
def export(store: Store) -> Path:
    out = store.path.parent / "export"
    export_store(store, out, SpeculatorsFormat(), demo.model_path(), draft_vocab_size=100)
    return out


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    with drafter._quiet():
        yield


def dataset(export: Path) -> "torch.utils.data.Dataset[dict[str, torch.Tensor]]":
    from speculators.train.data import ArrowDataset

    return ArrowDataset(4096, export, on_missing="raise")


def test_speculators_loader_returns_what_the_store_holds(store: Store, export: Path) -> None:
    loaded = dataset(export)
    assert len(loaded) == len(store) == 8
    for row, sample in zip(range(8), store, strict=True):
        item = loaded[row]
        assert torch.equal(item["input_ids"], sample.input_ids)
        assert item["loss_mask"].tolist() == sample.loss_mask.tolist()
        assert item["hidden_states"].dtype == torch.bfloat16
        assert torch.equal(item["hidden_states"], sample.hidden_states[:, :-1].flatten(1))
        # the bridge: normed again as speculators does it, the last state is the stored one
        normed = _verifier_norm(export)(item["verifier_last_hidden_states"].float())
        torch.testing.assert_close(normed, sample.final.float(), rtol=2**-7, atol=1e-6)


def _verifier_norm(export: Path) -> torch.nn.Module:
    """speculators' own, with the demo model's weight as speculators itself loads it."""
    model = drafter.make_drafter(export, demo.model_path())
    norm: torch.nn.Module = model.verifier_norm
    return norm


def test_speculators_targets_are_the_models_own_distribution(store: Store, tmp_path: Path) -> None:
    export_store(store, tmp_path / "e", SpeculatorsFormat(), demo.model_path())
    loaded = dataset(tmp_path / "e")
    model = drafter.make_drafter(tmp_path / "e", demo.model_path())
    reference = load_reference(demo.model_path())
    for row in range(len(store)):
        item = loaded[row]
        with torch.no_grad():
            state = item["verifier_last_hidden_states"].float()
            ours = model.verifier_lm_head(model.verifier_norm(state)).log_softmax(-1)
            own = reference(item["input_ids"][None]).logits[0].float().log_softmax(-1)
        divergence = (own.exp() * (own - ours)).sum(-1)
        assert float(divergence.mean()) < 1e-3
        shifted = (own[1:].exp() * (own[1:] - ours[:-1])).sum(-1)
        assert float(shifted.mean()) > 1, "negative control: one position off"


def test_rows_filed_under_each_other_are_seen_by_speculators(store: Store, tmp_path: Path) -> None:
    """Negative control for the round trip: the loader compares ids, and so would this test."""
    out = tmp_path / "e"
    export_store(store, out, SpeculatorsFormat(), demo.model_path())
    first, second = (out / f"hidden_states/hs_{row}.safetensors" for row in (0, 1))
    first.rename(out / "x")
    second.rename(first)
    (out / "x").rename(second)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert type(dataset(out)[0]).__name__ == "SampleUnavailable"


def test_vocabulary_maps_are_those_that_speculators_would_make(store: Store, export: Path) -> None:
    from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution

    counts = torch.load(export / "token_freq.pt", weights_only=True)
    trained = torch.cat([s.input_ids[s.loss_mask != 0] for s in store])
    assert sum(counts.values()) == len(trained)
    d2t, t2d = build_vocab_mappings_from_distribution(counts, 100, 768)
    assert np.array_equal(np.load(export / "d2t.npy"), d2t.numpy())
    assert np.array_equal(np.load(export / "t2d.npy"), t2d.numpy())


def test_the_command_is_one_that_speculators_takes(store: Store, export: Path) -> None:
    from speculators.train.config import TrainConfig

    text = (export / "train.sh").read_text()
    words = shlex.split(text.replace("\\\n", " ").replace('"$@"', ""), comments=True)
    assert words[:2] == ["speculators", "train"]
    args = TrainConfig.resolve(words[2:]).flatten()
    assert args["target_layer_ids"] == list(BOUNDARIES)
    assert args["draft_vocab_size"] == 100
    assert args["total_seq_len"] >= max(entry.num_tokens for entry in store.entries.values())
    assert args["on_missing"] == "raise"
    assert Path(args["data_path"]) == export


def test_a_draft_of_the_whole_vocabulary_has_no_maps(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "e"
    export_store(store, out, SpeculatorsFormat(), demo.model_path(), draft_vocab_size=100)
    report = export_store(store, out, SpeculatorsFormat(), demo.model_path(), draft_vocab_size=768)
    assert report.made == 0
    assert not (out / "d2t.npy").exists()
    assert "d2t" not in (out / "train.sh").read_text()


def test_a_store_before_the_norm_is_written_as_it_is(tmp_path: Path) -> None:
    pre = model_store(
        tmp_path / "s", demo.model_path(), demo_samples(2, 60), BOUNDARIES, final_norm="pre"
    )
    report = export_store(pre, tmp_path / "e", SpeculatorsFormat(), demo.model_path())
    assert report.bridge == "pre-norm as stored"
    item = dataset(tmp_path / "e")[0]
    assert torch.equal(item["verifier_last_hidden_states"], next(iter(pre)).final)


def test_long_rows_are_converted_in_pieces_that_join(
    store: Store, export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hslib.export.speculators._TOKENS_AT_ONCE", 7)
    export_store(store, tmp_path / "e", SpeculatorsFormat(), demo.model_path())
    for file in (export / "hidden_states").iterdir():
        assert (tmp_path / "e/hidden_states" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("drafter", "refused", "taken"),
    [
        ("eagle3", ["qwen3_next", "qwen3_5_moe_text", "gemma3_text"], ["deepseek_v3", "qwen3"]),
        ("peagle", ["qwen3_5_text", "gemma"], ["llama"]),
        ("dflash", ["qwen3_next", "qwen3_5_moe_text"], ["gemma3_text", "qwen3_5_text", "qwen3"]),
    ],
)
def test_models_that_speculators_norms_wrongly_are_refused(
    drafter: str, refused: list[str], taken: list[str]
) -> None:
    for model_type in refused:
        with pytest.raises(ExportError, match=re.escape("1 + weight")):
            SpeculatorsFormat(drafter).check(model_type, demo.model_path())
    for model_type in taken:
        SpeculatorsFormat(drafter).check(model_type, demo.model_path())


def test_the_types_that_speculators_norms_as_gemma_are_the_installed_ones() -> None:
    from speculators.models.utils import GEMMA_STYLE_FINAL_NORM_MODEL_TYPES

    from hslib.export.speculators import _READ_AS_ONE_PLUS

    assert GEMMA_STYLE_FINAL_NORM_MODEL_TYPES == _READ_AS_ONE_PLUS


def test_the_terminal_exports(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", str(store.path), "--to", "speculators", str(tmp_path / "e")]
    assert terminal.main([*command, "--draft-vocab-size", "64"]) == 0
    shown = capsys.readouterr().out
    assert "8 (8 made now" in shown and "pre-norm, from the stored post-norm" in shown
    assert len(dataset(tmp_path / "e")) == 8
    assert terminal.main([*command, "--draft-vocab-size", "9999"]) == 1
    assert "not in 1..768" in capsys.readouterr().err
