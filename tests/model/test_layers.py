"""Layer numbers in every tool's dialect, against the tools' own code where it is installed."""

from types import SimpleNamespace

import pytest
from make.source_code import function_of

from hslib import demo, terminal
from hslib.errors import ParameterError
from hslib.model import dialect_table, from_boundaries, parse_layers
from hslib.model.layers import (
    DIALECTS,
    apply_rule,
    auto_boundaries,
    sglang_rule,
    to_boundaries,
)

KIMI, LLAMA, GPT_OSS = "DeepseekV3ForCausalLM", "LlamaForCausalLM", "GptOssForCausalLM"


@pytest.mark.parametrize(
    ("dialect", "architecture", "ids", "boundaries"),
    [
        ("boundary", KIMI, (3, 31, 59), (3, 31, 59)),
        ("sglang", KIMI, (2, 30, 58), (2, 30, 58)),
        ("sglang", KIMI, (3, 31, 59), (3, 31, 59)),
        ("sglang", KIMI, (0, 30, 58), (0, 30, 58)),
        ("sglang", LLAMA, (1, 29, 57), (2, 30, 58)),
        ("sglang", GPT_OSS, (1, 29, 57), (2, 30, 58)),
        ("vllm", KIMI, (2, 30, 58, 61), (2, 30, 58, 61)),
        ("speculators", LLAMA, (2, 30, 58), (2, 30, 58)),
        ("specforge", KIMI, (1, 29, 57), (2, 30, 58)),
        ("modelopt", LLAMA, (1, 29, 57), (2, 30, 58)),
        ("eagle_config", KIMI, (2, 30, 58), (2, 30, 58)),
        ("eagle_config", KIMI, (1, 29, 57), (2, 30, 58)),
        ("eagle_config", LLAMA, (1, 29, 57), (2, 30, 58)),
        ("eagle_config", "SomeNewForCausalLM", (1, 29, 57), (2, 30, 58)),
    ],
)
def test_ids_of_a_61_layer_model_mean_these_boundaries(
    dialect: str, architecture: str, ids: tuple[int, ...], boundaries: tuple[int, ...]
) -> None:
    assert to_boundaries(ids, dialect, 61, architecture) == boundaries


@pytest.mark.parametrize(
    ("dialect", "architecture", "ids", "meanings"),
    [
        ("sglang", KIMI, (1, 29, 57), {(2, 30, 58), (1, 29, 57)}),
        ("sglang", "KimiK25ForConditionalGeneration", (1, 29, 57), {(2, 30, 58), (1, 29, 57)}),
        ("sglang", GPT_OSS, (2, 30, 61), {(2, 30, 61), (3, 31, 62)}),
        ("sglang", "SomeNewForCausalLM", (2, 30, 58), {(2, 30, 58), (3, 31, 59)}),
        ("eagle_config", LLAMA, (1, 28, 57), {(2, 29, 58), (1, 28, 57)}),
    ],
)
def test_ids_with_two_meanings_are_an_error_that_shows_both(
    dialect: str, architecture: str, ids: tuple[int, ...], meanings: set[tuple[int, ...]]
) -> None:
    with pytest.raises(ParameterError, match="2 ways") as error:
        to_boundaries(ids, dialect, 61, architecture)
    assert {tuple(found) for found in error.value.fields["readings"].values()} == meanings
    for meaning in meanings:
        assert str(list(meaning)) in str(error.value)


@pytest.mark.parametrize("architecture", [KIMI, LLAMA, GPT_OSS])
@pytest.mark.parametrize("boundaries", [(2, 30, 58), (3, 31, 59), (5, 6, 7)])
@pytest.mark.parametrize("dialect", sorted(set(DIALECTS) - {"eagle_config"}))
def test_boundaries_survive_a_dialect_and_back(
    dialect: str, boundaries: tuple[int, ...], architecture: str
) -> None:
    ids = from_boundaries(boundaries, dialect, 61, architecture)
    assert to_boundaries(ids, dialect, 61, architecture) == boundaries


def test_what_a_dialect_cannot_say_is_an_error() -> None:
    """SGLang's DeepSeek reads a first 1 as 2, and nothing as 1."""
    with pytest.raises(ParameterError, match="no unambiguous ids"):
        from_boundaries((1, 29, 57), "sglang", 61, KIMI)
    with pytest.raises(ParameterError, match="no unambiguous ids"):
        from_boundaries((0, 3), "specforge", 61, KIMI)


@pytest.mark.parametrize("ids", [(3, 3, 5), (5, 3), (3, 62), (-1, 3)])
def test_ids_that_repeat_descend_or_leave_the_model_are_refused(ids: tuple[int, ...]) -> None:
    with pytest.raises(ParameterError, match=r"do not ascend within 0\.\.61"):
        to_boundaries(ids, "vllm", 61, KIMI)


def test_an_unknown_dialect_is_named() -> None:
    with pytest.raises(ParameterError, match="unknown dialect 'tensorrt'"):
        to_boundaries((1,), "tensorrt", 61)


def test_auto_is_eagle3s_customary_three() -> None:
    assert auto_boundaries(61) == (2, 30, 58)
    assert auto_boundaries(10) == (2, 5, 7)


@pytest.mark.parametrize("num_layers", [1, 2, 3, 4, 5, 6])
def test_defaults_of_small_models_collide_and_are_refused(num_layers: int) -> None:
    with pytest.raises(ParameterError, match="no three distinct"):
        auto_boundaries(num_layers)
    rows = dialect_table(num_layers, LLAMA, (1,))
    assert "collide" in rows[1].default_boundaries, "SGLang would take them and fail later"


def test_seven_layers_are_the_fewest_with_defaults() -> None:
    assert auto_boundaries(7) == (2, 3, 4)


def test_the_table_of_61_layers() -> None:
    rows = {row.tool.split()[0]: row for row in dialect_table(61, KIMI, (3, 31, 59))}
    assert (rows["SGLang"].default_boundaries, rows["SGLang"].ids) == ("2, 30, 58", "3, 31, 59")
    assert (rows["SpecForge"].default_ids, rows["SpecForge"].ids) == ("1, 29, 57", "2, 30, 58")
    assert rows["speculators"].ids == rows["vLLM,"].ids == "3, 31, 59"
    llama = {row.tool.split()[0]: row for row in dialect_table(61, LLAMA, (3, 31, 59))}
    assert llama["SGLang"].ids == "2, 30, 58"
    assert llama["a"].ids.startswith("none"), "SGLang and vLLM read one config key differently"


def test_the_terminal_shows_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert terminal.main(["layers", str(demo.model_path())]) == 0
    shown = capsys.readouterr().out
    assert "DeepseekV3ForCausalLM, 10 layers; boundaries [2, 5, 7]" in shown
    assert "1, 4, 6" in shown
    assert terminal.main(["layers", str(demo.model_path()), "--boundaries", "7,2"]) == 1


def test_parsed_layers_ascend_within_the_model() -> None:
    assert parse_layers("auto", 61) == (2, 30, 58)
    assert parse_layers(" 3, 31,59 ", 61) == (3, 31, 59)
    assert parse_layers("24,30,36", 36) == (24, 30, 36), "the last layer's output is one of them"
    assert parse_layers("3,-2,-1", 61) == (3, 60, 61), "as transformers' hidden_states[-1]"
    assert parse_layers("none", 61) == ()
    assert parse_layers("all", 4) == (1, 2, 3, 4)
    for text in ("3,3", "31,3", "0,3", "3,62", "3;31", "-62", "-1,3", "", "some"):
        with pytest.raises(ParameterError):
            parse_layers(text, 61)


_FILES = {
    LLAMA: "llama.py",
    "Qwen2ForCausalLM": "qwen2.py",
    "Qwen3ForCausalLM": "qwen3.py",
    "Glm4MoeForCausalLM": "glm4_moe.py",
    KIMI: "deepseek_v2.py",
    "Glm4MoeLiteForCausalLM": "glm4_moe_lite.py",
    GPT_OSS: "gpt_oss.py",
}


@pytest.mark.parametrize("architecture", sorted(_FILES))
@pytest.mark.parametrize("ids", [(1, 29, 57), (2, 30, 58), (0, 5), (2, 30, 61), None])
def test_the_rules_are_those_of_the_installed_sglang(
    architecture: str, ids: tuple[int, ...] | None
) -> None:
    """The setter's own source, run on a stand-in model."""
    setter = function_of(
        "sglang", f"srt/models/{_FILES[architecture]}", "set_eagle3_layers_to_capture"
    )
    inner = SimpleNamespace(layers_to_capture=[])
    model = SimpleNamespace(
        model=inner,
        pp_group=SimpleNamespace(is_last_rank=True),
        config=SimpleNamespace(num_hidden_layers=61),
    )
    setter(model, None if ids is None else list(ids))
    rule = sglang_rule(architecture)
    assert rule is not None
    expected = auto_boundaries(61) if ids is None else apply_rule(rule, ids, 61)
    assert tuple(inner.layers_to_capture) == expected
