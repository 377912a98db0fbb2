"""Tensors by name out of a sharded checkpoint: only the shards that hold them are opened."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hslib import demo
from hslib.errors import ParameterError
from hslib.model import Weights, open_weights, read_head
from hslib.model.weights import EMBEDDING, FINAL_NORM, HEAD


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


# embedding, final norm, head (None = tied) of published checkpoints, and names like them elsewhere
NAMES: dict[str, tuple[str, str, str | None, list[str]]] = {
    "Gemma-3 4B": (
        "language_model.model.embed_tokens.weight",
        "language_model.model.norm.weight",
        None,
        ["vision_tower.vision_model.post_layernorm.weight"],
    ),
    "Qwen3-VL": (
        "model.language_model.embed_tokens.weight",
        "model.language_model.norm.weight",
        "lm_head.weight",
        ["model.visual.merger.norm.weight"],
    ),
    "Qwen3.5": (
        "model.language_model.embed_tokens.weight",
        "model.language_model.norm.weight",
        "lm_head.weight",
        ["mtp.norm.weight", "mtp.embed_tokens.weight"],
    ),
    "Qwen2.5-Omni": (
        "thinker.model.embed_tokens.weight",
        "thinker.model.norm.weight",
        "thinker.lm_head.weight",
        ["talker.model.norm.weight", "talker.model.embed_tokens.weight", "talker.lm_head.weight"],
    ),
    "DeepSeek-V3": (
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
        ["model.layers.61.embed_tokens.weight", "model.layers.61.shared_head.norm.weight"],
    ),
    "DeepSeek-VL2": (
        "language.model.embed_tokens.weight",
        "language.model.norm.weight",
        "language.lm_head.weight",
        ["vision.norm.weight"],
    ),
    "Kimi-K2.5": (
        "language_model.model.embed_tokens.weight",
        "language_model.model.norm.weight",
        "language_model.lm_head.weight",
        ["vision_tower.encoder.final_layernorm.weight"],
    ),
    "InternVL with InternLM2": (
        "language_model.model.tok_embeddings.weight",
        "language_model.model.norm.weight",
        "language_model.output.weight",
        ["vision_model.encoder.layers.0.attention.output.weight"],
    ),
    "ChatGLM3": (
        "transformer.embedding.word_embeddings.weight",
        "transformer.encoder.final_layernorm.weight",
        "transformer.output_layer.weight",
        ["transformer.encoder.layers.0.input_layernorm.weight"],
    ),
    "Nemotron-H": (
        "backbone.embeddings.weight",
        "backbone.norm_f.weight",
        "lm_head.weight",
        ["backbone.layers.0.norm.weight"],
    ),
}


@pytest.mark.parametrize("model", NAMES)
def test_a_published_checkpoints_embedding_norm_and_head_are_found(model: str) -> None:
    embedding, norm, head, others = NAMES[model]
    names = [*others, *[name for name in (embedding, norm, head) if name]]
    weights = Weights(Path(), dict.fromkeys(names, ""))
    found = tuple(weights.find(ends) for ends in (EMBEDDING, FINAL_NORM, HEAD))
    assert found == (embedding, norm, head)
    only_others = Weights(Path(), dict.fromkeys(others, ""))
    assert [only_others.find(ends) for ends in (EMBEDDING, FINAL_NORM, HEAD)] == [None] * 3


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    embedding = torch.ones(3, 2, dtype=torch.bfloat16)
    save_file({"model.embed_tokens.weight": embedding}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": true}')
    assert torch.equal(read_head(tmp_path), embedding.float())
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": false}')
    with pytest.raises(ParameterError, match="no output head"):
        read_head(tmp_path)


def test_the_demo_models_head_is_not_its_embedding() -> None:
    weights, head = open_weights(demo.model_path()), read_head(demo.model_path())
    name = weights.find(EMBEDDING)
    assert name is not None and head.shape == (768, 96)
    assert not torch.equal(weights.read([name])[name].float(), head)
