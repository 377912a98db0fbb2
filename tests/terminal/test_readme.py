"""README's commands as a newcomer types them in a fresh checkout, with this host's values."""

import json
from pathlib import Path

import pytest
from make.readme import block_with, checkout, replaced, shell
from real.warm import WarmServers

from hslib import demo
from hslib.model.layers import auto_boundaries
from hslib.store import Store

MODEL = "/models/Kimi-K2"
# one CPU process in place of eight GPUs, and the demo's model
HERE = {"-p tp_size 8": "-p tp_size 1", "context_length 32768": "context_length 2048"}


def rows_file(path: Path, count: int) -> Path:
    path.write_text("\n".join(demo.dataset_path().read_text().splitlines()[:count]) + "\n")
    return path


def large_model(folder: Path) -> Path:
    """The config of a model of 61 layers, without weights."""
    config = json.loads((demo.model_path() / "config.json").read_text())
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 61}))
    return folder


# --- without a server ---------------------------------------------------------------------


def test_plan_as_printed(tmp_path: Path) -> None:
    rows_file(tmp_path / "train.jsonl", 20)
    block = block_with("hslib plan")
    said = shell(replaced(block, {MODEL: large_model(tmp_path / "m")}), checkout(tmp_path))
    assert "tokens" in said


def test_the_ids_of_another_tool_as_printed(tmp_path: Path) -> None:
    large = large_model(tmp_path / "m")
    text = (Path(__file__).parents[2] / "README.md").read_text()
    assert "`--ids 1,29,57 --tool specforge`" in text
    said = shell(f"python -m hslib layers {large} --ids 1,29,57 --tool specforge", tmp_path)
    assert f"boundaries {list(auto_boundaries(61))}" in said
    assert "`python -m hslib layers MODEL --boundaries 3,31,59`" in text
    said = shell(f"python -m hslib layers {large} --boundaries 3,31,59", tmp_path)
    assert "boundaries [3, 31, 59]" in said


# --- with one -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_first_command_extracts_the_demo_and_its_report_is_found(
    tmp_path: Path, warm: WarmServers
) -> None:
    checkout(tmp_path)
    block = block_with("pip install -r", "hslib run").replace(
        "pip install -r requirements.txt && ", ""
    )
    said = shell(block, tmp_path, warm.for_kernels())
    assert "256 of 256 rows" in said
    assert said.splitlines()[-1] == "the executed notebook: runs/demo/03_extraction.ipynb"
    run = tmp_path / "runs/demo"
    assert len(Store(run / "store").entries) == 256
    shell("python -m hslib report runs/demo", tmp_path)
    assert (run / "03_extraction.html").is_file() and (run / "index.html").is_file()
    store = "runs/demo/store"
    shell(f"python -m hslib verify {store}; python -m hslib diagnose {store}", tmp_path)
    shell(f"python -m hslib export {store} --to speculators exported", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_first_own_model_from_start_to_stop(tmp_path: Path, warm: WarmServers) -> None:
    checkout(tmp_path)
    rows_file(tmp_path / "train.jsonl", 24)
    states = tmp_path / "states"
    values = {MODEL: demo.model_path(), "/data/kimi-states": states, **HERE}
    block = replaced(block_with("action start", "action stop"), values)
    said = shell(block, tmp_path, warm.for_kernels())
    assert "24 of 24 rows" in said
    assert Store(states).manifest.boundaries == auto_boundaries(10)
    run = tmp_path / "runs/kimi"
    made = {path.stem for path in run.glob("*.html")}
    assert made == {"02_server_launch", "03_extraction", "04_statistics", "index"}
    assert (run / "stop.ipynb").is_file()
    assert "running" not in shell("python -m hslib status runs/kimi || true", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_slurm_script_extracts_a_shard_per_task(tmp_path: Path, warm: WarmServers) -> None:
    checkout(tmp_path)
    rows_file(tmp_path / "train.jsonl", 9)
    states = tmp_path / "states"
    values = {MODEL: demo.model_path(), "/data/kimi-states": states, **HERE}
    script = replaced(block_with("#SBATCH"), {**values, "source venv/bin/activate\n": ""})
    for task in ("0", "1"):
        variables = {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_TASK_COUNT": "2"}
        shell(script, tmp_path, {**variables, **warm.for_kernels()})
    assert sorted(Store(states).entries) == list(range(9))
