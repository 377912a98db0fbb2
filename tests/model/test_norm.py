"""The final norm: undone and done again it is what it was, and other norms are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from hslib import demo
from hslib.errors import ExportError
from hslib.model import ONE_PLUS_WEIGHT, FinalNorm, open_weights, read_final_norm, read_head
from hslib.model.weights import EMBEDDING


def folder(tmp_path: Path, tensors: dict[str, torch.Tensor], **config: object) -> Path:
    save_file(tensors, tmp_path / "model.safetensors")
    facts = {"model_type": "llama", "rms_norm_eps": 1e-6, **config}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    return tmp_path


def test_undone_and_done_again_a_state_is_what_it_was() -> None:
    norm = read_final_norm(demo.model_path())
    torch.manual_seed(0)
    post = norm.normed((torch.randn(50, 96) * 7).bfloat16())
    again = norm.normed(norm.unnormed(post))
    torch.testing.assert_close(again.float(), post.float(), rtol=2**-7, atol=1e-6)
    assert not torch.allclose(norm.unnormed(post).float(), post.float(), rtol=0.1), "control"


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_the_norm_is_the_one_that_transformers_computes(tmp_path: Path, model_type: str) -> None:
    weight = torch.linspace(-0.5, 1.5, 16)
    found = read_final_norm(folder(tmp_path, {"model.norm.weight": weight}, model_type=model_type))
    if model_type == "llama":
        module = transformers.models.llama.modeling_llama.LlamaRMSNorm(16, 1e-6)
    else:
        module = transformers.models.gemma3.modeling_gemma3.Gemma3RMSNorm(16, 1e-6)
    module.weight.data = weight
    state = torch.randn(5, 16)
    torch.testing.assert_close(found.normed(state), module(state).detach())


def test_the_model_types_that_add_one_are_those_of_the_installed_transformers() -> None:
    models = Path(transformers.__file__).parent / "models"
    source = {path.parent.name: path.read_text() for path in models.glob("*/modeling_*.py")}
    adds_one = {name for name, text in source.items() if "(1.0 + self.weight" in text}
    listed = {transformers.CONFIG_MAPPING[t].__module__.split(".")[2] for t in ONE_PLUS_WEIGHT}
    # these add one elsewhere: to the layers' norms alone, or in an encoder-decoder
    elsewhere = {"muse_glimmer", "qwen4_exp", "t5gemma", "t5gemma2", "voxtral_realtime"}
    assert listed == adds_one - elsewhere
    for model_type in ("llama", "qwen3", "gemma4", "gemma3n", "deepseek_v3", "gpt_oss", "glm4"):
        assert model_type not in adds_one


_TINY: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
_ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"]}
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma3_text": {},
    "gemma4_text": {**_ALTERNATING, "hidden_size_per_layer_input": 0, "global_head_dim": 16},
    "glm4": {"partial_rotary_factor": 0.5},
    "gpt_oss": {**_ALTERNATING, "num_local_experts": 2, "num_experts_per_tok": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 4, "n_groups": 1, "state_size": 8, "expand": 2},
    "minimax_m3_vl_text": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 1,
        "ssm_state_size": 8,
        "n_routed_experts": 2,
    },
    "qwen3_5_text": _LINEAR,
    # SGLang's and transformers' LayerNorms without a bias: of an RMSNorm's shape, and none
    "cohere": {},
    "mpt": {"d_model": 32, "n_heads": 2, "n_layers": 2},
}


def tiny_model(folder: Path, family: str) -> torch.nn.Module:
    """A model as its family's checkpoints are saved; returns its final norm, of no even weight."""
    config = transformers.CONFIG_MAPPING[family](**{**_TINY, **FAMILIES[family]})
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    names = ("norm", "norm_f", "embedding_norm")
    norm = next(getattr(model.base_model, n) for n in names if hasattr(model.base_model, n))
    norm.weight.data = torch.linspace(-0.5, 1.5, 32)
    model.save_pretrained(folder)
    return norm


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("cohere", "mpt")])
def test_a_familys_own_norm_is_found_and_computed_as_in_transformers(
    tmp_path: Path, family: str
) -> None:
    norm = tiny_model(tmp_path, family)
    found = read_final_norm(tmp_path)
    state = torch.randn(5, 32)
    torch.testing.assert_close(found.normed(state), norm(state).detach())
    assert open_weights(tmp_path).find(EMBEDDING)


@pytest.mark.parametrize("family", ["cohere", "mpt"])
def test_a_layer_norm_without_a_bias_is_not_taken_for_an_rms_norm(
    tmp_path: Path, family: str
) -> None:
    tiny_model(tmp_path, family)
    with pytest.raises(ExportError, match="not a known RMSNorm: no rms_norm_eps"):
        read_final_norm(tmp_path)


def test_an_eps_that_the_config_leaves_out_is_its_classes(tmp_path: Path) -> None:
    tensors = {"language_model.model.norm.weight": torch.ones(4)}
    config = {"model_type": "gemma3", "text_config": {"hidden_size": 16}, "rms_norm_eps": None}
    found = read_final_norm(folder(tmp_path, tensors, **config))
    assert (found.eps, found.model_type) == (1e-6, "gemma3_text")
    assert found.gain.tolist() == [2.0] * 4, "1 + weight, since its part is a gemma3_text"


def test_a_wrappers_language_model_is_the_one_that_is_read(tmp_path: Path) -> None:
    tensors = {
        "vision_tower.model.norm.weight.extra": torch.zeros(4),
        "model.language_model.norm.weight": torch.full((4,), 3.0),
        "language_model.model.norm.weight": torch.full((4,), 2.0),
    }
    assert read_final_norm(folder(tmp_path, tensors)).gain.tolist() == [2.0] * 4


@pytest.mark.parametrize(
    ("wrapper", "gain"), [("qwen3_vl", 0.5), ("qwen3_5", 1.5), ("qwen3_5_moe", 1.5)]
)
def test_a_vision_models_norm_and_head_are_found_among_those_of_its_other_parts(
    tmp_path: Path, wrapper: str, gain: float
) -> None:
    """As Qwen3-VL and Qwen3.5 are published; Qwen3.5's norm adds one to its weight."""
    tensors = {
        "model.language_model.norm.weight": torch.full((4,), 0.5),
        "model.language_model.embed_tokens.weight": torch.full((8, 4), 2.0),
        "model.language_model.layers.0.input_layernorm.weight": torch.full((4,), 9.0),
        "model.visual.merger.norm.weight": torch.full((4,), 7.0),
        "model.visual.deepstack_merger_list.0.norm.weight": torch.full((4,), 8.0),
        "mtp.norm.weight": torch.full((4,), 6.0),
    }
    part = {"model_type": f"{wrapper}_text", "hidden_size": 4, "rms_norm_eps": 1e-6}
    config = {"model_type": wrapper, "text_config": part, "tie_word_embeddings": True}
    path = folder(tmp_path, tensors, **config)
    assert read_final_norm(path).gain.tolist() == [gain] * 4
    assert torch.equal(read_head(path), tensors["model.language_model.embed_tokens.weight"])


def test_a_norm_with_a_bias_or_without_eps_is_refused(tmp_path: Path) -> None:
    both = {"model.norm.weight": torch.ones(4), "model.norm.bias": torch.ones(4)}
    with pytest.raises(ExportError, match="it has a bias"):
        read_final_norm(folder(tmp_path, both))
    (tmp_path / "config.json").write_text(json.dumps({"layer_norm_eps": 1e-5}))
    save_file({"model.norm.weight": torch.ones(4)}, tmp_path / "model.safetensors")
    with pytest.raises(ExportError, match="no rms_norm_eps"):
        read_final_norm(tmp_path)
    save_file({"something.weight": torch.ones(4)}, tmp_path / "model.safetensors")
    with pytest.raises(ExportError, match="no weight"):
        read_final_norm(tmp_path)


@pytest.mark.parametrize("bad", [0.0, 1e-9, float("nan"), float("inf")])
def test_a_channel_that_the_norm_lost_is_named(bad: float) -> None:
    gain = torch.ones(8)
    gain[3] = bad
    with pytest.raises(ExportError, match=r"channels=\[3") as error:
        FinalNorm(gain, 1e-6, "llama").require_invertible()
    assert "specforge" in str(error.value)


def test_states_that_another_norm_made_are_refused() -> None:
    mine = FinalNorm(torch.rand(64) + 0.5, 1e-6, "llama")
    other = FinalNorm(torch.rand(64) + 0.5, 1e-6, "llama")
    post = other.normed(torch.randn(20, 64))
    other.unnormed(post)
    with pytest.raises(ExportError, match="did not come out of this norm"):
        mine.unnormed(post)
    assert mine.digest != other.digest
