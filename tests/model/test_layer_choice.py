"""``layers`` is words, numbers, or a draft: a folder, a config.json, an id of the hub's cache."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from make.drafts import write_draft

from hslib import demo
from hslib.cluster.messages import of_replica
from hslib.errors import ParameterError
from hslib.model import choose_layers, layers_source, names_a_draft, read_shape
from hslib.parameters import ExtractionParameters
from hslib.terminal import main

MODEL = read_shape(demo.model_path())  # DeepSeek-V3, 10 layers
DEFAULT = [1, 4, 6]  # SpecForge's and Model-Optimizer's for 10 layers: boundaries 2, 5, 7
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return write_draft(tmp_path / "drafts/one", demo.model_path(), DEFAULT)


def refused(layers: str) -> ParameterError:
    with pytest.raises(ParameterError) as error:
        choose_layers(layers, MODEL)
    assert error.value.message.startswith("parameter 'layers': ") and error.value.fix
    assert "\n" not in error.value.message
    return error.value


@pytest.mark.parametrize("text", ["auto", "none", "all", "3,5", " 3, -1 ", "-1", "3", "", "some"])
def test_words_and_numbers_are_no_draft(text: str) -> None:
    assert not names_a_draft(text)


@pytest.mark.parametrize(
    "text", ["./d", "../d", "~/d", "/a/d", "a/d", "d/", "config.json", "d.json", "Some/Draft", "."]
)
def test_what_looks_like_a_path_or_an_id_is_one(text: str) -> None:
    assert names_a_draft(text)


def test_numbers_mean_what_they_did() -> None:
    assert choose_layers("3,5,-1", MODEL) == (3, 5, 10)
    assert choose_layers("auto", MODEL) == (2, 5, 7)
    assert layers_source("3,5", MODEL) == {}
    with pytest.raises(ParameterError, match="not a list of numbers"):
        choose_layers("some", MODEL)


def test_a_folder_its_config_and_a_relative_path_are_the_draft(
    draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(draft.parent)
    monkeypatch.setenv("HOME", str(draft.parent))
    monkeypatch.setattr("hslib.model.hub._cached", lambda *_: pytest.fail("asked the hub"))
    given = (str(draft), f" {draft}/ ", str(draft / "config.json"), "./one", "one/config.json")
    for layers in (*given, "~/one", "~/one/config.json", "one/"):
        assert choose_layers(layers, MODEL) == (2, 5, 7), layers
    (source,) = layers_source("./one", MODEL).values()
    assert source.startswith("./one, eagle_config.eagle_aux_hidden_state_layer_ids [1, 4, 6]")


def test_an_id_is_looked_up_in_the_hubs_cache(draft: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache/models--Some--Draft"
    (root / "refs").mkdir(parents=True)
    (root / "refs/main").write_text("0" * 40)
    (root / "snapshots").mkdir()
    (root / "snapshots" / ("0" * 40)).symlink_to(draft)
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "hslib", "layers", str(demo.model_path()), "--draft"]
    found = subprocess.run([*command, "Some/Draft"], env=env, capture_output=True, text=True)
    assert found.returncode == 0 and "-p layers 2,5,7" in found.stdout, found.stderr
    absent = subprocess.run([*command, "Some/Other"], env=env, capture_output=True, text=True)
    assert absent.returncode == 1
    assert absent.stderr.startswith("draft Some/Other: ")
    assert "hf download Some/Other" in absent.stderr


def test_what_is_no_draft_is_said_in_a_line_that_names_the_parameter(tmp_path: Path) -> None:
    assert f"draft {tmp_path}/gone: it is not there" in str(refused(f"{tmp_path}/gone"))
    assert "there is no config.json in it" in str(refused(str(tmp_path)))
    file = tmp_path / "config.json"
    for text, message in (
        ("{", "can't be read as JSON"),
        ("version https://git-lfs.github.com/spec/v1\n", "can't be read as JSON"),
        ("[1]", "is not a JSON object"),
        ("{}", "no draft's config: no class, and no layer ids"),
    ):
        file.write_text(text)
        assert message in str(refused(str(tmp_path)))
        assert message in str(refused(str(file)))
    file.write_bytes(b"\xff\xfe\x00")
    assert "can't be read as JSON" in str(refused(str(file)))
    file.unlink()
    (tmp_path / "folder.json").mkdir()
    assert "there is no config.json in it" in str(refused(str(tmp_path / "folder.json")))
    assert "it is no draft's config" in str(refused(str(demo.model_path())))


def test_a_draft_for_another_model_is_refused_with_the_fields(tmp_path: Path) -> None:
    write_draft(tmp_path, demo.model_path(), DEFAULT, hidden_size=64, vocab_size=5)
    error = refused(str(tmp_path))
    assert error.fields == {
        "hidden_size": "64 in the draft's config, 96 in the model's",
        "vocab_size": "5 in the draft's config, 768 in the model's",
    }


def test_a_replica_gets_numbers_and_need_not_see_the_draft(draft: Path) -> None:
    job = ExtractionParameters(layers=str(draft))
    assert of_replica(job, 3).layers == "2,5,7"
    assert of_replica(ExtractionParameters(layers="none"), 3).layers == "none"
    write_draft(draft, demo.model_path(), [], eagle_config={"use_aux_hidden_state": False})
    assert of_replica(job, 3).layers == "none", "the final state alone"


def test_the_terminal_says_what_a_draft_asks_for(draft: Path, capsys: Captured) -> None:
    model = str(demo.model_path())
    assert main(["layers", model, "--draft", str(draft)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for part in (
        "draft eagle3, in the form of SafeAILab, SpecForge or Model-Optimizer",
        "asks for eagle_config.eagle_aux_hidden_state_layer_ids [1, 4, 6]: the outputs of these",
        "last state after the final norm: the final state",
        "boundary 10 not needed",
        "write -p layers 2,5,7",
        "ids for [2, 5, 7]",
    ):
        assert part in shown
    write_draft(draft, model, [5, 8, 10], speculators_model_type="eagle3")
    assert main(["layers", model, "--draft", str(draft)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "in the form of speculators" in shown and "before the final norm" in shown
    assert "boundary 10 needed" in shown and "-p layers 5,8,10" in shown


def test_the_terminal_says_both_readings_in_its_own_options(draft: Path, capsys: Captured) -> None:
    write_draft(draft, demo.model_path(), [1, 5, 7])
    assert main(["layers", str(demo.model_path()), "--draft", str(draft)]) == 1
    said = capsys.readouterr().err
    assert "2 ways" in said and "[2, 6, 8]" in said and "[1, 5, 7]" in said
    assert '--boundaries "2,6,8" or --boundaries "1,5,7"' in said


def test_the_terminals_ways_to_name_layers_exclude_each_other(
    draft: Path, capsys: Captured
) -> None:
    more = (["--boundaries", "2,5"], ["--ids", "1,4", "--tool", "specforge"])
    for other in more:
        assert main(["layers", str(demo.model_path()), "--draft", str(draft), *other]) == 2
        assert "give one of" in capsys.readouterr().err


def test_a_forecast_takes_a_draft_for_a_model_and_not_for_a_bare_shape(
    draft: Path, capsys: Captured
) -> None:
    plan = ["plan", "--rate", "1000", "--tokens", "1e6", "--layers", str(draft)]
    assert main([*plan, "--model", str(demo.model_path())]) == 0
    assert "4 states x 96" in capsys.readouterr().out
    assert main([*plan, "--hidden-size", "96", "--num-layers", "10"]) == 1
    assert "give --model" in capsys.readouterr().err


def test_a_draft_with_a_name_that_is_not_ascii_is_read(tmp_path: Path) -> None:
    folder = write_draft(tmp_path / "entwürfe/é", demo.model_path(), DEFAULT)
    config = json.loads((folder / "config.json").read_text())
    text = json.dumps({**config, "note": "é"}, ensure_ascii=False)
    (folder / "config.json").write_text(text, "utf-8")
    assert choose_layers(str(folder), MODEL) == (2, 5, 7)
