"""The terminal: what it lists, what it loads, and its exit codes. Each command's own tests stand
with what the command calls."""

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

import hslib
from hslib import demo
from hslib.errors import StoreError
from hslib.model.layers import DIALECTS
from hslib.terminal import main
from hslib.terminal.layers import Dialect

Captured = pytest.CaptureFixture[str]


def test_help_lists_the_commands_in_the_order_of_a_job(capsys: Captured) -> None:
    assert main(["--help"]) == 0
    listed = [
        line.split()[0] for line in capsys.readouterr().out.split("Commands:")[1].split("\n")[1:-1]
    ]
    first = ["run", "rows", "plan", "layers", "status", "clean"]
    assert listed == [*first, "verify", "diagnose", "report", "recode", "export"]


def test_the_version_is_the_packages(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"hslib {hslib.__version__}\n"
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] == hslib.__version__


def test_help_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'transformers', 'pandas', 'numpy', 'ray', 'hslib.store', 'hslib.server'}"
    code = "import sys; from hslib.terminal import main; main(['--help']); "
    code += f"print({heavy} & sys.modules.keys())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.endswith("set()\n"), found.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Usage"),
        (["nothing"], "No such command"),
        (["plan", "--tokens", "5"], "--rate"),
        (["plan", "--rate", "5"], "give one of --tokens and --dataset"),
        (["plan", "--rate", "5", "--tokens", "5", "--dataset", "x"], "give one of"),
        (["plan", "--rate", "5", "--tokens", "1/0"], "not a number"),
        (["export", "a", "b", "--to", "nothing"], "--to"),
        (["export", "a", "b"], "--to"),
        (["verify"], "STORE"),
        (["rows", "a", "b"], "--model"),
        (["rows", "a", "b", "--model", "m", "--chat-template-kwargs", "{"], "is not JSON"),
        (["layers", "m", "--ids", "1,2"], "belong together"),
        (["layers", "m", "--tool", "vllm"], "belong together"),
        (["layers", str(demo.model_path()), "--ids", "a,b", "--tool", "vllm"], "not a list"),
    ],
)
def test_a_command_line_that_can_not_be_read_exits_with_2(
    arguments: list[str], message: str, capsys: Captured
) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert message in shown.err + shown.out


def test_an_error_of_the_kit_is_shown_without_a_traceback_and_exits_with_1(
    tmp_path: Path, capsys: Captured
) -> None:
    assert main(["verify", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("this is not a store")


def test_any_other_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("hslib.store.Store.__init__", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["verify", "somewhere"])
    monkeypatch.setattr("hslib.store.Store.__init__", lambda *_: _raise(StoreError("no")))
    assert main(["verify", "somewhere"]) == 1


def _raise(error: Exception) -> None:
    raise error


def test_the_process_exits_with_the_commands_code(tmp_path: Path) -> None:
    for arguments, code in ((["--help"], 0), (["verify", str(tmp_path)], 1), (["verify"], 2)):
        command = [sys.executable, "-m", "hslib", *arguments]
        assert subprocess.run(command, capture_output=True).returncode == code


def test_a_tools_layer_ids_are_told_in_boundaries(capsys: Captured) -> None:
    model = str(demo.model_path())
    assert main(["layers", model, "--ids", "1,4,6", "--tool", "specforge"]) == 0
    assert "boundaries [2, 5, 7]" in capsys.readouterr().out


def test_ids_that_can_be_meant_in_two_ways_are_refused_with_both(capsys: Captured) -> None:
    """SGLang adds 1 to every id of DeepSeek-V3 when the first is 1."""
    assert main(["layers", str(demo.model_path()), "--ids", "1,4,6", "--tool", "sglang"]) == 1
    shown = capsys.readouterr().err
    assert "2 ways" in shown and "[2, 5, 7]" in shown and "[1, 4, 6]" in shown


def test_the_terminal_offers_every_dialect() -> None:
    assert set(get_args(Dialect)) == set(DIALECTS)


def test_layers_of_a_model_too_small_for_a_default_are_shown_with_a_note(
    model_of: Callable[[str], Path], capsys: Captured
) -> None:
    assert main(["layers", str(model_of("llama"))]) == 0
    shown = capsys.readouterr().out
    assert "no three distinct default boundaries" in shown
    assert "collide: name others" in shown
