"""SpecForge's draft configs: what is the model's in them; SpecForge's own classes take them."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from make import models
from make.rows import demo_samples, random_sample
from make.stores import model_store
from make.training import specforge_step, with_index

from hslib import demo
from hslib.errors import ParameterError
from hslib.export import SpecForgeFormat, export_store
from hslib.export.draft_config import draft_config
from hslib.model import choose_layers, read_config, read_shape

FAMILY = ("dflash", "domino", "dspark")

needs_specforge = pytest.mark.skipif(
    importlib.util.find_spec("specforge") is None,
    reason="SPECFORGE IS ABSENT, so its own config classes were NOT tried: "
    "pip install --no-deps specforge==0.2.0",
)

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
}
_LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def made(tmp_path: Path, config: dict[str, Any], drafter: str = "eagle3") -> dict[str, Any]:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return draft_config(drafter, read_config(tmp_path), [1, 14, 28], [2, 15, 29], 32, 128256, 32000)


# --- rope ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 500000.0, "rope_scaling": _LLAMA3_SCALING},
        {"rope_parameters": {"rope_theta": 500000.0, **_LLAMA3_SCALING}},
    ],
    ids=["rope_theta and rope_scaling", "rope_parameters"],
)
@pytest.mark.parametrize("drafter", ["eagle3", "dflash"])
def test_rope_is_the_models_in_either_spelling(
    spelling: dict[str, Any], drafter: str, tmp_path: Path
) -> None:
    found = made(tmp_path, {**_LLAMA, **spelling}, drafter)
    assert found["rope_theta"] == 500000.0
    assert found["rope_scaling"] == _LLAMA3_SCALING


def test_a_theta_alone_is_taken_too(tmp_path: Path) -> None:
    parameters = {"rope_type": "default", "rope_theta": 1e6}
    found = made(tmp_path, {**_LLAMA, "rope_parameters": parameters})
    assert (found["rope_theta"], found["rope_scaling"]) == (1e6, None)


def test_a_class_that_has_a_theta_of_its_own_is_asked(tmp_path: Path) -> None:
    """Config files may leave out what their class has by default."""
    found = made(tmp_path, {**_LLAMA, "model_type": "gpt_oss", "head_dim": 64})
    assert found["rope_theta"] == 150000.0


def test_of_ropes_by_kind_of_layer_the_full_attentions_is_taken(tmp_path: Path) -> None:
    by_kind = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    }
    gemma = {**_LLAMA, "model_type": "gemma3_text", "rope_parameters": by_kind, "head_dim": 256}
    found = made(tmp_path, gemma)
    assert found["rope_theta"] == 1e6
    assert found["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True},
        {"rope_type": "default", "partial_rotary_factor": 0.25},
        {"type": "mrope", "mrope_section": [16, 24, 24]},
        {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
    ],
)
def test_what_belongs_to_the_models_own_attention_is_left_out(
    parameters: dict[str, Any], tmp_path: Path
) -> None:
    config = {**_LLAMA, "model_type": "unknown_one", "rope_parameters": parameters}
    found = made(tmp_path, {**config, "rope_theta": 5e6})
    assert (found["rope_theta"], found["rope_scaling"]) == (5e6, None)


def test_what_yarn_leaves_out_is_filled_in(tmp_path: Path) -> None:
    """SpecForge's layer takes these as they are, None too."""
    yarn = {"type": "yarn", "factor": 4.0}
    found = made(tmp_path, {**_LLAMA, "rope_scaling": yarn, "rope_theta": 1e6})["rope_scaling"]
    assert found["original_max_position_embeddings"] == 131072
    assert (found["beta_fast"], found["beta_slow"], found["mscale"]) == (32.0, 1.0, 1.0)
    assert found["rope_type"] == "yarn" and "type" not in found


# --- heads, norm --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "head_dim"),
    [
        ({}, 128),
        ({"hidden_size": 5120, "num_attention_heads": 24, "head_dim": 256}, 256),  # Qwen3.6-27B
        ({"hidden_size": 2880, "num_attention_heads": 64, "head_dim": 64}, 64),  # gpt-oss
        ({"hidden_size": 2880, "num_attention_heads": 64}, 48),
        ({"hidden_size": 72, "num_attention_heads": 8}, 16),
        ({"hidden_size": 2560, "num_attention_heads": 32}, 80),
    ],
)
def test_head_dim_is_the_models_or_one_that_kernels_take(
    shape: dict[str, int], head_dim: int, tmp_path: Path
) -> None:
    for drafter in ("eagle3", "dflash"):
        found = made(tmp_path, {**_LLAMA, **shape, "model_type": "unknown_one"}, drafter)
        assert found["head_dim"] == head_dim


def test_eagle3_has_as_many_heads_as_llamas_config_takes(tmp_path: Path) -> None:
    shape = {"hidden_size": 5120, "num_attention_heads": 24, "head_dim": 256}
    config = {**_LLAMA, **shape, "model_type": "qwen3", "num_key_value_heads": 4}
    draft = made(tmp_path, config)
    assert (draft["num_attention_heads"], draft["num_key_value_heads"]) == (20, 4)
    assert made(tmp_path, config, "dflash")["num_attention_heads"] == 24


def test_latent_attention_has_no_such_heads(tmp_path: Path) -> None:
    """Kimi-K2: its class calls the 64 rope dimensions of a head ``head_dim``."""
    kimi = {
        **_LLAMA,
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
    }
    found = made(tmp_path, kimi, "dspark")
    assert (found["head_dim"], found["num_key_value_heads"]) == (112, 64)
    assert found["dflash_config"]["attention_mode"] == "mha"
    assert "attention_mode" not in made(tmp_path, _LLAMA, "dspark")["dflash_config"]


def test_the_norms_eps_has_its_familys_name(tmp_path: Path) -> None:
    config = {**_LLAMA, "model_type": "lfm2", "norm_eps": 3e-5}
    del config["rms_norm_eps"]
    assert made(tmp_path, config)["rms_norm_eps"] == 3e-5


@pytest.mark.parametrize("drafter", FAMILY)
def test_the_family_has_its_own_shape(drafter: str, tmp_path: Path) -> None:
    found = made(tmp_path, _LLAMA, drafter)
    assert found["dflash_config"]["target_layer_ids"] == [1, 14, 28]
    assert (found["num_target_layers"], found["vocab_size"]) == (32, 128256)
    assert len(found["layer_types"]) == found["num_hidden_layers"] == 5
    assert "eagle_config" not in found and "draft_vocab_size" not in found


# --- SpecForge's own classes --------------------------------------------------------------


@needs_specforge
@pytest.mark.parametrize("drafter", ["eagle3", *FAMILY])
def test_specforges_class_takes_it_with_that_rope_and_these_heads(
    drafter: str, tmp_path: Path
) -> None:
    from specforge.training.model_loading import load_draft_config_source

    rope = {"rope_parameters": {"rope_theta": 500000.0, **_LLAMA3_SCALING}}
    shape = {"hidden_size": 5120, "num_attention_heads": 24, "head_dim": 256, "model_type": "qwen3"}
    path = tmp_path / "draft_config.json"
    path.write_text(json.dumps(made(tmp_path, {**_LLAMA, **shape, **rope}, drafter)))
    found = load_draft_config_source(str(path))
    assert found.rope_parameters["rope_theta"] == 500000.0
    assert found.rope_parameters["rope_type"] == "llama3"
    assert (found.head_dim, found.hidden_size, found.rms_norm_eps) == (256, 5120, 1e-5)
    assert found.tie_word_embeddings is False
    assert found.draft_vocab_size == (32000 if drafter == "eagle3" else 128256)


_ODD: dict[str, dict[str, Any]] = {
    "heads wider than their share": {"hidden_size": 72, "num_attention_heads": 8},
    "heads that do not divide the width": {"hidden_size": 80, "num_attention_heads": 6},
    "tied": {"tie_word_embeddings": True},
    "llama3's rope": {"rope_parameters": {"rope_theta": 5e5, **_LLAMA3_SCALING}},
    "yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}},
}


_STEPPED = [
    pytest.param(name, marks=[pytest.mark.slow] if name in ("domino", "dspark") else [])
    for name in ("eagle3", *FAMILY)
]


@needs_specforge
@pytest.mark.parametrize("drafter", _STEPPED)
@pytest.mark.parametrize("odd", _ODD)
def test_a_drafter_of_an_odd_model_takes_a_step(odd: str, drafter: str, tmp_path: Path) -> None:
    values = {"num_key_value_heads": 2, **_ODD[odd]}
    family = "qwen3" if odd == "heads that do not divide the width" else "llama"
    folder = with_index(models.build(family, tmp_path / "model", **values))
    samples = [random_sample(index, 40) for index in range(2)]
    store = model_store(tmp_path / "store", folder, samples, (2, 3, 5))
    out = export_store(store, tmp_path / "e", SpecForgeFormat(drafter), folder).path
    if odd == "tied":
        assert 'lm_head_key: "model.embed_tokens.weight"' in (out / "specforge.yaml").read_text()
    step = specforge_step(out, folder)
    assert 0 < step.loss < 100
    assert step.gradients_finite and step.changed > 0


@needs_specforge
def test_a_folder_without_an_index_is_named_in_eagle3s_config(tmp_path: Path) -> None:
    """SpecForge says no such file; its other drafters do without one."""
    folder = models.build("llama", tmp_path / "model")
    store = model_store(tmp_path / "store", folder, [random_sample(0, 40)], (2, 3, 5))
    for drafter, said in (("eagle3", True), ("dflash", False)):
        trainer = SpecForgeFormat(drafter)
        out = export_store(store, tmp_path / drafter, trainer, folder).path
        assert ("index.json" in (out / "specforge.yaml").read_text()) is said
    with pytest.raises(FileNotFoundError, match=r"No index\.json"):
        specforge_step(tmp_path / "eagle3", folder)
    shutil.rmtree(tmp_path / "dflash")


def test_layers_reads_the_boundaries_of_an_export_without_a_doubt(tmp_path: Path) -> None:
    """SpecForge's ids alone could be meant in two ways: 1, 2, 4 are outputs, or boundaries."""
    store = model_store(tmp_path / "store", demo.model_path(), demo_samples(2, 60), (2, 3, 5))
    export_store(store, tmp_path / "out", SpecForgeFormat(), demo.model_path())
    model = read_shape(str(demo.model_path()))
    assert choose_layers(str(tmp_path / "out"), model) == (2, 3, 5)
    config = json.loads((tmp_path / "out/draft_config.json").read_text())
    del config["hslib_boundaries"]
    (tmp_path / "out/draft_config.json").write_text(json.dumps(config))
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 2, 4]
    with pytest.raises(ParameterError, match="can be meant in 2 ways"):
        choose_layers(str(tmp_path / "out"), model)
