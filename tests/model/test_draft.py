"""The layers that a draft asks for, in the forms of published ones, against the tools' own code."""

import functools
from types import SimpleNamespace
from typing import Any

import pytest
from make.published_drafts import DRAFTS, GPT_OSS_120B, LLAMA_8B, QWEN3_8B, target
from make.source_code import function_of

from hslib.errors import ParameterError
from hslib.model import ModelInfo
from hslib.model.draft import parse_draft
from hslib.model.draft_layers import dflash_layer_ids, layers_of
from hslib.model.layers import SGLANG_VERSION

CLEAR = sorted(name for name, draft in DRAFTS.items() if draft.boundaries is not None)
AMBIGUOUS = sorted(set(DRAFTS) - set(CLEAR))

V3 = DRAFTS["nvidia/gpt-oss-120b-Eagle3-v3"].config
PLAIN = DRAFTS["lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge"].config
DFLASH = DRAFTS["SpecForge qwen3-8b-dflash"].config


def ask(config: dict[str, Any], model: ModelInfo) -> tuple[int, ...]:
    return layers_of(parse_draft(config), model).boundaries


def source(config: dict[str, Any], model: ModelInfo) -> str:
    return layers_of(parse_draft(config), model).source


def refused(config: dict[str, Any], model: ModelInfo) -> ParameterError:
    with pytest.raises(ParameterError) as error:
        ask(config, model)
    assert error.value.fix
    return error.value


@pytest.mark.parametrize("name", CLEAR)
def test_a_published_draft_asks_for_these_boundaries(name: str) -> None:
    published = DRAFTS[name]
    assert ask(published.config, published.target) == published.boundaries


@pytest.mark.parametrize("name", sorted(DRAFTS))
def test_what_a_published_draft_is_and_which_last_state_it_wants(name: str) -> None:
    published = DRAFTS[name]
    draft = parse_draft(published.config)
    assert (draft.kind, draft.last_state) == (published.kind, published.last_state)


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_a_published_draft_with_two_readings_is_refused_with_both_and_what_to_write(
    name: str,
) -> None:
    published = DRAFTS[name]
    error = refused(published.config, published.target)
    assert "2 ways" in error.message
    shown = {tuple(boundaries) for boundaries in error.fields["readings"].values()}
    assert shown == set(published.meanings) and len(shown) == 2
    for boundaries in published.meanings:
        assert f'layers = "{",".join(map(str, boundaries))}"' in error.fix


def test_24_30_36_of_36_layers_can_only_be_boundaries() -> None:
    """The output of layer 36 would be a state behind the model, whatever class the target has."""
    assert ask(V3, GPT_OSS_120B) == (24, 30, 36)
    for architecture in ("LlamaForCausalLM", "SomeNewForCausalLM", "DeepseekV3ForCausalLM"):
        assert ask(V3, target(architecture, 36, 2880, 201088)) == (24, 30, 36)
    deeper = target("LlamaForCausalLM", 48, 2880, 201088)
    assert set(map(tuple, refused(V3, deeper).fields["readings"].values())) == {
        (24, 30, 36),
        (25, 31, 37),
    }


def test_how_the_ids_were_read_is_said() -> None:
    assert source(V3, GPT_OSS_120B) == (
        "eagle_config.eagle_aux_hidden_state_layer_ids [24, 30, 36]: boundaries "
        f"(SGLang {SGLANG_VERSION} serving GptOssForCausalLM)"
    )
    assert "every EAGLE-3 tool's default" in source(PLAIN, LLAMA_8B)
    assert "the outputs of [1, 9, 17, 25, 33]" in source(DFLASH, QWEN3_8B)
    published = DRAFTS["RedHatAI/Qwen3-8B-speculator.eagle3"]
    assert "names no layers" in source(published.config, published.target)


# --- against the tools ----------------------------------------------------------------------

_SGLANG = {
    "lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge": "llama.py",
    "lmsys/Qwen3-235B-A22B-EAGLE3": "qwen3_moe.py",
    "nvidia/gpt-oss-120b-Eagle3-v3": "gpt_oss.py",
    "nvidia/gpt-oss-120b-Eagle3-long-context": "gpt_oss.py",
    "lightseekorg/kimi-k2.5-eagle3-mla": "deepseek_v2.py",
}


@pytest.mark.parametrize("name", sorted(_SGLANG))
def test_the_installed_sglang_captures_the_same_for_a_draft_in_its_form(name: str) -> None:
    published = DRAFTS[name]
    setter = function_of("sglang", f"srt/models/{_SGLANG[name]}", "set_eagle3_layers_to_capture")
    inner = SimpleNamespace(layers_to_capture=[])
    inner.set_eagle3_layers_to_capture = functools.partial(setattr, inner, "layers_to_capture")
    model = SimpleNamespace(
        model=inner,
        pp_group=SimpleNamespace(is_last_rank=True),
        config=SimpleNamespace(num_hidden_layers=published.target.num_layers),
    )
    eagle = published.config.get("eagle_config", {})
    setter(model, eagle.get("eagle_aux_hidden_state_layer_ids"))
    assert tuple(inner.layers_to_capture) == published.boundaries


@pytest.mark.parametrize(
    "name",
    [
        "lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge",
        "lmsys/Qwen3-235B-A22B-EAGLE3",
        "SpecForge qwen3-8b-peagle",
    ],
)
def test_the_installed_specforge_captures_the_same_for_its_own_drafts(name: str) -> None:
    published = DRAFTS[name]
    resolve = function_of(
        "specforge", "algorithms/model_providers.py", "resolve_eagle_capture_layers", Config=object
    )
    run = SimpleNamespace(model=SimpleNamespace(aux_hidden_state_layer_ids=None))
    of_target = SimpleNamespace(num_hidden_layers=published.target.num_layers)
    outputs = resolve(run, published.config, of_target)
    assert tuple(i + 1 for i in outputs) == published.boundaries


def test_the_installed_speculators_has_the_same_default() -> None:
    resolve = function_of(
        "speculators",
        "models/utils.py",
        "resolve_target_layer_ids",
        get_verifier_config=lambda *_, **__: SimpleNamespace(num_hidden_layers=36),
        warnings=SimpleNamespace(warn=lambda *_, **__: None),
        DEFAULT_TARGET_LAYER_IDS_WARNING="",
    )
    published = DRAFTS["RedHatAI/Qwen3-8B-speculator.eagle3"]
    assert tuple(resolve(None, "a/target")) == published.boundaries


@pytest.mark.parametrize("num_layers", [5, 8, 24, 36, 61, 64, 94])
@pytest.mark.parametrize("num_draft_layers", [1, 2, 3, 5, 6, 8])
def test_the_default_of_a_dflash_draft_is_specforges_and_sglangs(
    num_layers: int, num_draft_layers: int
) -> None:
    files = {"specforge": "modeling/draft/dflash.py", "sglang": "srt/speculative/dflash_utils.py"}
    for package, file in files.items():
        theirs = function_of(package, file, "build_target_layer_ids")(num_layers, num_draft_layers)
        if len(set(theirs)) < len(theirs):  # they would capture a state twice
            with pytest.raises(ParameterError, match="distinct default layers"):
                dflash_layer_ids(num_layers, num_draft_layers)
        else:
            assert list(dflash_layer_ids(num_layers, num_draft_layers)) == theirs


# --- what is refused ------------------------------------------------------------------------


def test_a_draft_for_another_target_is_refused_with_the_differing_fields() -> None:
    published = DRAFTS["RedHatAI/gemma-4-31B-it-speculator.eagle3"]
    error = refused(published.config, QWEN3_8B)
    assert set(error.fields) == {"hidden_size", "vocab_size"}
    assert error.fields["hidden_size"] == "5,376 in the draft's config, 4,096 in the model's"
    assert "some/target" in error.message

    deeper = target("Qwen3ForCausalLM", 40, 4096, 151936)
    assert set(refused(DFLASH, deeper).fields) == {"num_layers"}
    nested = {**DFLASH, "dflash_config": {"num_target_layers": 40}}
    assert set(refused(nested, QWEN3_8B).fields) == {"num_layers"}
    head = DRAFTS["speculators' MTP form"].config
    assert set(refused(head, target("", 36, 2048, 151936)).fields) == {"num_layers"}
    narrower = {**PLAIN, "hidden_size": 2048}
    assert set(refused(narrower, LLAMA_8B).fields) == {"hidden_size"}
    assert ask({**narrower, "target_hidden_size": 4096}, LLAMA_8B) == (2, 16, 29)


@pytest.mark.parametrize("ids", [[2, 30, 90], [-1, 5, 9]])
def test_layers_that_the_model_has_not_are_refused(ids: list[int]) -> None:
    config = {**DFLASH, "dflash_config": {"target_layer_ids": ids}}
    assert f"asks for boundaries {[i + 1 for i in ids]}" in refused(config, QWEN3_8B).message


def test_ids_that_do_not_ascend_are_refused_with_the_order_to_write() -> None:
    config = {**DFLASH, "dflash_config": {"target_layer_ids": [33, 1, 17]}}
    assert 'layers = "2,18,34"' in refused(config, QWEN3_8B).fix
    config = {**DFLASH, "dflash_config": {"target_layer_ids": [1, 1, 17]}}
    assert "do not ascend" in refused(config, QWEN3_8B).message


def test_two_fields_that_contradict_each_other_are_refused_with_both() -> None:
    agreeing = DRAFTS["nvidia's Nemotron 3.5 DFlash form"].config
    contradicting = {**agreeing, "eagle_aux_hidden_state_layer_ids": [1, 9, 17, 25, 33]}
    error = refused(contradicting, QWEN3_8B)
    assert list(error.fields["readings"].values()) == [[1, 9, 17, 25, 33], [2, 10, 18, 26, 34]]


def test_one_field_decides_what_another_leaves_open() -> None:
    """The ids of eagle_config alone could be meant in two ways."""
    eagle = {"eagle_aux_hidden_state_layer_ids": [2, 14, 29]}
    config = {**PLAIN, "eagle_config": eagle}
    assert "2 ways" in refused(config, LLAMA_8B).message
    assert ask({**config, "eagle_aux_hidden_state_layer_ids": [2, 14, 29]}, LLAMA_8B) == (2, 14, 29)
    assert ask({**config, "target_layer_ids": [2, 14, 29]}, LLAMA_8B) == (3, 15, 30)


def test_a_top_level_list_with_specforges_default_may_be_a_copy_of_its_ids() -> None:
    config = {**PLAIN, "eagle_aux_hidden_state_layer_ids": [1, 15, 28]}
    readings = refused(config, LLAMA_8B).fields["readings"]
    assert list(readings.values()) == [[1, 15, 28], [2, 16, 29]]
    config = {**PLAIN, "eagle_aux_hidden_state_layer_ids": [3, 15, 28]}
    assert ask(config, LLAMA_8B) == (3, 15, 28), "as vLLM reads it"


@pytest.mark.parametrize("ids", ["1,2,3", [1, "2"], [1, 2.5], [True, 5], {"low": 1}, 3])
def test_layer_ids_that_are_no_numbers_are_named(ids: object) -> None:
    error = refused({**PLAIN, "eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}, LLAMA_8B)
    assert "eagle_config.eagle_aux_hidden_state_layer_ids is no list" in error.message


def test_a_draft_without_ids_whose_tools_have_no_default_is_refused() -> None:
    error = refused({**PLAIN, "num_aux_hidden_states": 4}, LLAMA_8B)
    assert "names no layers" in error.message and "reads 4 states" in error.message
    assert ask({**PLAIN, "num_aux_hidden_states": 3}, LLAMA_8B) == (2, 16, 29)
    own = {**PLAIN, "speculators_model_type": "xpress", "num_aux_hidden_states": 5}
    assert "kind 'xpress'" in refused(own, LLAMA_8B).message


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 16, "hidden_size": 2048},
        {"architectures": None, "eagle_config": None, "dflash_config": [], "text_config": None},
        {"architectures": 5, "dspark_target_layer_ids": None, "target_layer_ids": []},
        {"architectures": "Eagle3", "dflash_config": ["a"], "text_config": [1]},
        {"architectures": ["DeepseekV3ForCausalLM"], "num_nextn_predict_layers": 0},
    ],
)
def test_a_config_that_is_no_drafts_is_said(config: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="no draft's config"):
        parse_draft(config)


def test_null_and_empty_lists_of_ids_are_none() -> None:
    for nothing in (None, []):
        config = {**PLAIN, "eagle_config": {"eagle_aux_hidden_state_layer_ids": nothing}}
        assert ask(config, LLAMA_8B) == (2, 16, 29)
