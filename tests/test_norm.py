"""The final norm: undone and done again it is what it was, and other norms are refused."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

from hslib import demo
from hslib.errors import ExportError
from hslib.norm import ONE_PLUS_WEIGHT, FinalNorm, read_final_norm


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
    for model_type in ONE_PLUS_WEIGHT:
        text = source[model_type.removesuffix("_text")]
        assert "(1.0 + self.weight" in text, model_type
    for model_type in ("llama", "qwen3", "qwen3_moe", "deepseek_v3", "gpt_oss", "glm4_moe"):
        assert "(1.0 + self.weight" not in source[model_type], model_type


def test_a_wrappers_language_model_is_the_one_that_is_read(tmp_path: Path) -> None:
    tensors = {
        "vision_tower.model.norm.weight.extra": torch.zeros(4),
        "model.language_model.norm.weight": torch.full((4,), 3.0),
        "language_model.model.norm.weight": torch.full((4,), 2.0),
    }
    assert read_final_norm(folder(tmp_path, tensors)).gain.tolist() == [2.0] * 4


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
