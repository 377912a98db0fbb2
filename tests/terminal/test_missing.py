"""A missing path is called missing, by every command, in the words of the command's options."""

import json
from pathlib import Path

import pytest

from hslib import demo
from hslib.terminal import main

MODEL, ROWS = str(demo.model_path()), str(demo.dataset_path())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "nowhere"], "the store is missing"),
        (["export", "nowhere", "out", "--to", "specforge"], "the store is missing"),
        (["diagnose", "nowhere"], "the log or store is missing"),
        (["layers", "nowhere"], "nowhere is missing"),
        (["plan", "--rate", "5", "--tokens", "5", "--model", "nowhere"], "nowhere is missing"),
        (["rows", ROWS, "out.jsonl", "--model", "/nowhere"], "model folder /nowhere is missing"),
        (["plan", "--rate", "5", "--dataset", "nowhere", "--model", MODEL], "no dataset at"),
        (["rows", "nowhere", "out.jsonl", "--model", MODEL], "no dataset at"),
        (["report", "nowhere"], "there is no such file or directory"),
        (["run", "nowhere.ipynb"], "the notebook is missing"),
        (["status", "nowhere"], "the run's folder is missing"),
    ],
)
def test_a_missing_path_is_called_missing(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert message in said
    assert "dataset_path" not in said and "model_path" not in said, "no option of a command"


def test_what_a_diagnosis_lacks_is_named_by_its_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"index": 0, "id": "a", "status": "ok", "num_tokens": 3, "digest": "0" * 32}
    (tmp_path / "journal.jsonl").write_text(json.dumps(line) + "\n")
    main(["diagnose", str(tmp_path / "journal.jsonl"), "--dataset", ROWS])
    said = capsys.readouterr()
    assert "--tokenizer not known" in said.out, said
