"""Tensors by name out of a sharded checkpoint: only the shards that hold them are opened."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hslib import demo
from hslib.errors import ParameterError
from hslib.weights import FINAL_NORM, Weights, embedding_and_head, open_weights


def sharded(folder: Path) -> Path:
    """Two shards; the second is missing."""
    save_file({"model.embed_tokens.weight": torch.ones(3, 2)}, folder / "a.safetensors")
    names = {"model.embed_tokens.weight": "a.safetensors", "lm_head.weight": "b.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    return folder


def test_a_tensor_is_read_though_other_shards_are_missing(tmp_path: Path) -> None:
    weights = open_weights(sharded(tmp_path))
    name = "model.embed_tokens.weight"
    assert torch.equal(weights.read([name])[name], torch.ones(3, 2))
    with pytest.raises(ParameterError, match=r"b\.safetensors can't be read"):
        weights.read(["lm_head.weight"])


def test_a_file_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="no readable safetensors"):
        open_weights(tmp_path)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ParameterError, match="no readable safetensors"):
        open_weights(tmp_path)


def test_the_shortest_of_several_names_is_the_language_models() -> None:
    names = ["language_model.model.norm.weight", "x.vision_model.model.norm.weight"]
    assert Weights(Path(), dict.fromkeys(names, "")).find(FINAL_NORM) == names[0]
    layers = Weights(Path(), {"model.layers.0.input_layernorm.weight": ""})
    assert layers.find(FINAL_NORM) is None


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    save_file({"model.embed_tokens.weight": torch.ones(3, 2)}, tmp_path / "model.safetensors")
    embedding, head = embedding_and_head(open_weights(tmp_path), tied=True)
    assert torch.equal(embedding, head)
    with pytest.raises(ParameterError, match="no output head"):
        embedding_and_head(open_weights(tmp_path), tied=False)


def test_the_demo_models_embedding_and_head_are_two() -> None:
    embedding, head = embedding_and_head(open_weights(demo.model_path()), tied=False)
    assert embedding.shape == head.shape == (768, 96)
    assert not torch.equal(embedding, head)
