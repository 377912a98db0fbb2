"""A model is a folder, or an id of the hub in its cache; without a network the cure is said."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hslib import demo
from hslib.cluster.messages import of_replica
from hslib.model import how_to_fetch, local_folder
from hslib.parameters import DiagnosisParameters, ExtractionParameters, ServerParameters

REVISION = "0123456789abcdef0123456789abcdef01234567"


def cache_model(cache: Path, leave_out: str = "") -> Path:
    """The demo's model as ``Some/Model`` in a hub cache: links into ``blobs``."""
    root = cache / "models--Some--Model"
    snapshot = root / "snapshots" / REVISION
    for folder in (root / "refs", root / "blobs", snapshot):
        folder.mkdir(parents=True)
    (root / "refs/main").write_text(REVISION)
    for number, file in enumerate(sorted(demo.model_path().iterdir())):
        if file.name != leave_out:
            shutil.copy(file, root / f"blobs/{number}")
            (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    return snapshot


def offline(cache: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run the terminal in a process of its own: the hub reads its environment on import."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache)}
    return subprocess.run(
        [sys.executable, "-m", "hslib", *command], env=env, capture_output=True, text=True
    )


def test_a_cached_model_is_found_by_its_id_without_a_network(tmp_path: Path) -> None:
    cache_model(tmp_path)
    run = offline(tmp_path, "layers", "Some/Model")
    assert run.returncode == 0, run.stderr
    assert "10 layers" in run.stdout


def test_a_model_that_is_not_cached_is_said_with_the_command_that_fetches_it(
    tmp_path: Path,
) -> None:
    cache_model(tmp_path)
    assert "Cannot have -- or .." in offline(tmp_path, "layers", "a..b/c").stderr
    run = offline(tmp_path, "layers", "Qwen/Qwen3-8B")
    assert run.returncode == 1
    assert "model Qwen/Qwen3-8B is not a local folder" in run.stderr
    assert "hf download Qwen/Qwen3-8B" in run.stderr
    assert "Traceback" not in run.stderr


OF_PART = "from hslib.model.hub import *; import sys; print(local_folder(sys.argv[1], sys.argv[2]))"


@pytest.mark.parametrize(
    ("leave_out", "lacking"),
    [
        ("", ()),
        ("model.safetensors", ("weights",)),
        ("config.json", ("weights", "config")),
        ("tokenizer.json", ()),  # tokenizer_config.json is there
    ],
)
def test_a_cache_that_holds_a_part_serves_what_needs_no_more(
    tmp_path: Path, leave_out: str, lacking: tuple[str, ...]
) -> None:
    snapshot = cache_model(tmp_path, leave_out)
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path)}
    for part in ("weights", "config", "tokenizer"):
        command = [sys.executable, "-c", OF_PART, "Some/Model", part]
        run = subprocess.run(command, env=env, capture_output=True, text=True)
        if part in lacking:
            assert f"its files in the cache lack the {part}" in run.stderr
            assert "hf download Some/Model" in run.stderr
        else:
            assert run.stdout.strip() == str(snapshot), run.stderr


def test_a_cached_model_whose_blob_is_gone_is_not_taken_for_whole(tmp_path: Path) -> None:
    snapshot = cache_model(tmp_path)
    (snapshot / "model.safetensors").resolve().unlink()
    command = [sys.executable, "-c", OF_PART, "Some/Model", "weights"]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path)}
    run = subprocess.run(command, env=env, capture_output=True, text=True)
    assert "hf download Some/Model" in run.stderr


def test_a_folder_of_that_name_wins_over_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Qwen/Qwen3-8B").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert local_folder("Qwen/Qwen3-8B") == tmp_path / "Qwen/Qwen3-8B"


def test_paths_that_are_no_ids_are_never_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hslib.model.hub._cached", lambda *_: pytest.fail("asked the hub"))
    for path in ("/no/model", "./model", "../a/model", "models/a/b", "model"):
        assert local_folder(path) == (tmp_path / path).absolute()


def test_model_paths_are_absolute_whatever_they_were_given_as(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    for folder in (home / "m", here / "m"):
        folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    for given, meant in (("m", here / "m"), ("~/m", home / "m"), (str(home), home)):
        assert ServerParameters(model_path=given).model_folder == meant
        job = ExtractionParameters(model_path=given)
        assert job.model_folder == meant
        assert of_replica(job, 3).model_path == str(meant)
        assert DiagnosisParameters(tokenizer_path=given).tokenizer_folder == meant


def test_how_to_fetch_names_the_model_of_a_cache_folder() -> None:
    cached = Path("/c/models--Qwen--Qwen3-8B/snapshots/abc")
    assert how_to_fetch(cached) == "hf download Qwen/Qwen3-8B"
    assert how_to_fetch(Path("/models/Qwen3-8B")) == ""
