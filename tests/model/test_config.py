"""Configs as people have them are read as SGLang reads them; nothing that they omit is guessed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from make.published_configs import CONFIGS

from hslib.errors import ParameterError
from hslib.model import ModelInfo, read_config, read_shape
from hslib.terminal import main

PLAIN = {"model_type": "qwen3", "num_hidden_layers": 4, "hidden_size": 64, "vocab_size": 512}


def shape_of(folder: Path, config: Any) -> ModelInfo:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return read_shape(folder)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_config_is_understood(tmp_path: Path, name: str) -> None:
    found = shape_of(tmp_path, CONFIGS[name].config)
    sizes = (found.num_layers, found.hidden_size, found.vocab_size, found.context_length)
    assert (*sizes, found.model_type) == CONFIGS[name].expected
    assert found.architecture == CONFIGS[name].config["architectures"][0]


# two counts in one file, and a wrapper's part that is null: SGLang decides these too
CONTRADICTING = {
    "gpt2": {**CONFIGS["gpt2-medium"].config, "num_hidden_layers": 20},
    "longcat": {**CONFIGS["LongCat-Flash-Chat"].config, "num_hidden_layers": 56},
    "chatglm": {**CONFIGS["chatglm3-6b"].config, "num_hidden_layers": 20, "vocab_size": 99},
    "gemma3": {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"},
}

ASK = """
import json, sys
from sglang.srt.utils.hf_transformers_utils import get_config, get_hf_text_config
for folder in sys.argv[1:]:
    config = get_hf_text_config(get_config(folder, trust_remote_code=False))
    names = ("num_hidden_layers", "hidden_size", "vocab_size", "model_type")
    print("SGLANG", json.dumps([getattr(config, name) for name in names]))
"""


def test_sglang_itself_reads_the_same_out_of_every_config(tmp_path: Path) -> None:
    configs = {**{name: c.config for name, c in CONFIGS.items()}, **CONTRADICTING}
    mine = {}
    for number, config in enumerate(configs.values()):
        folder = tmp_path / str(number)
        found = shape_of(folder, config)
        sizes = [found.num_layers, found.hidden_size, found.vocab_size]
        mine[str(folder)] = [*sizes, found.model_type]
    run = subprocess.run(
        [sys.executable, "-c", ASK, *mine], capture_output=True, text=True, timeout=500
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("SGLANG ")]
    theirs = [json.loads(line.removeprefix("SGLANG ")) for line in lines]
    assert dict(zip(configs, theirs, strict=True)) == dict(zip(configs, mine.values(), strict=True))


def test_where_two_counts_of_layers_differ_the_other_one_is_said(tmp_path: Path) -> None:
    longcat = shape_of(tmp_path, CONFIGS["LongCat-Flash-Chat"].config)
    assert longcat.notes == (
        "28 layers by num_layers, as SGLang counts; transformers' class says 56",
    )
    both = shape_of(tmp_path, CONTRADICTING["gpt2"])
    assert both.notes == ("20 layers by num_hidden_layers, as SGLang counts; n_layer says 24",)
    assert shape_of(tmp_path, CONFIGS["gpt2-medium"].config).notes == ()
    assert shape_of(tmp_path, CONFIGS["chatglm3-6b"].config).notes == ()


def test_the_terminal_says_the_other_count_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape_of(tmp_path, CONFIGS["LongCat-Flash-Chat"].config)
    assert main(["layers", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "28 layers" in said and "transformers' class says 56" in said


def test_a_part_that_is_null_or_empty_is_none(tmp_path: Path) -> None:
    for part in (None, {}):
        found = shape_of(tmp_path, {**PLAIN, "text_config": part})
        assert (found.num_layers, found.vocab_size) == (4, 512)


def test_a_wrappers_own_numbers_do_not_stand_for_its_language_models(tmp_path: Path) -> None:
    """The part's class knows better than the wrapper, whose width may be the vision tower's."""
    config = {**CONFIGS["gemma-3-4b-it"].config, "vocab_size": 7, "max_position_embeddings": 9}
    found = shape_of(tmp_path, config)
    assert (found.vocab_size, found.context_length) == (262208, 131072)


@pytest.mark.parametrize("missing", ["num_hidden_layers", "hidden_size", "vocab_size"])
def test_what_nobody_states_is_named_and_not_guessed(tmp_path: Path, missing: str) -> None:
    config = {**PLAIN, "model_type": "somebodys_own"}
    del config[missing]
    with pytest.raises(ParameterError, match=f"lacks a usable '{missing}'") as error:
        shape_of(tmp_path, config)
    assert str(tmp_path) in str(error.value)


def test_a_config_that_its_class_refuses_says_why(tmp_path: Path) -> None:
    config = {"model_type": "gemma3_text", "num_hidden_layers": 4, "intermediate_size": "wide"}
    with pytest.raises(ParameterError, match="not a config of model type gemma3_text"):
        shape_of(tmp_path, config)
    with pytest.raises(ParameterError, match="lacks a usable 'hidden_size'"):
        shape_of(tmp_path, {**PLAIN, "hidden_size": "wide"})


def test_a_config_that_is_no_object_is_said(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="not a JSON object"):
        shape_of(tmp_path, [1])


def test_code_in_the_folder_is_never_run(tmp_path: Path) -> None:
    marker = tmp_path / "it ran"
    code = f"open({str(marker)!r}, 'w')\nclass Own: pass\n"
    (tmp_path / "configuration_own.py").write_text(code)
    auto_map = {"AutoConfig": "configuration_own.Own"}
    for model_type in ("somebodys_own", "gemma3_text"):
        config = {**PLAIN, "auto_map": auto_map, "model_type": model_type}
        del config["vocab_size"]
        if model_type == "gemma3_text":
            assert shape_of(tmp_path, config).vocab_size == 262208
        else:
            with pytest.raises(ParameterError, match="lacks a usable 'vocab_size'"):
                shape_of(tmp_path, config)
    assert not marker.exists()


def imported_while_reading(folder: Path) -> set[str]:
    code = (
        f"import sys; from hslib.model.folder import read_shape; read_shape({str(folder)!r}); "
        "print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_a_config_that_states_everything_is_read_without_transformers(tmp_path: Path) -> None:
    stated = {**PLAIN, "max_position_embeddings": 64}
    shape_of(tmp_path, stated)
    assert not {"transformers", "torch"} & imported_while_reading(tmp_path)
    shape_of(tmp_path, PLAIN)
    assert "transformers" in imported_while_reading(tmp_path), "the class knows the context"


def test_tied_weights_are_taken_from_whoever_states_them(tmp_path: Path) -> None:
    def tied(name: str, **more: Any) -> bool:
        shape_of(tmp_path, {**CONFIGS[name].config, **more})
        return read_config(tmp_path).tied

    assert tied("Qwen3-VL-4B-Instruct"), "the wrapper's word"
    assert tied("gemma-3-4b-it"), "the class's"
    assert not tied("gpt-oss-120b")
    assert tied("gpt-oss-120b", tie_word_embeddings=True)
    assert not tied("gemma-3-4b-it", tie_word_embeddings=False)
