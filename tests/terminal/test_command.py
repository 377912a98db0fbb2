"""Advice is given in the words of the command at hand."""

import json
from pathlib import Path

import pytest

from hslib.terminal import main
from hslib.terminal.command import in_options

OPTIONS = {"model_path": "--model", "samples": "--samples", "dataset_path": "--dataset"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("parameter 'samples' is 0: it should be more", "--samples is 0: it should be more"),
        ("set model_path, or dataset_path", "set --model, or --dataset"),
        ("'samples': only with 'regenerate'", "--samples: only with 'regenerate'"),
        ("samples = 3 is too many of the samples", "--samples 3 is too many of the samples"),
        ("[model_path='x']", "[model_path='x']"),
        ("other_model_path and a/model_path", "other_model_path and a/model_path"),
    ],
)
def test_a_parameter_is_named_as_the_commands_option(text: str, told: str) -> None:
    assert in_options(text, OPTIONS) == told


def test_layers_are_named_by_the_option_of_the_command_at_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"num_hidden_layers": 5, "hidden_size": 8, "vocab_size": 9}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    assert main(["layers", str(tmp_path)]) == 0
    assert '--boundaries "1,2,3"' in capsys.readouterr().out
    assert main(["plan", "--rate", "5", "--tokens", "5", "--model", str(tmp_path)]) == 1
    assert 'such as --layers "1,2,3"' in capsys.readouterr().err


def test_the_commands_own_options_are_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["rows", "chats", str(tmp_path / "o.jsonl"), "--model", "m", "--samples", "3"]
    assert main(command) == 1
    assert capsys.readouterr().err == "--samples: only with --regenerate\n"
