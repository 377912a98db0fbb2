"""The notebooks as papermill runs them: what goes wrong fails, with the message, and cleanly."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
from make.waits import wait_until
from real.servers import writers_of
from real.warm import WarmServers

from hslib.job.progress import read_progress
from hslib.server import launch as server
from hslib.server import processes
from hslib.store import Store

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@pytest.mark.parametrize("notebook", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_committed_notebook_is_executed_and_names_no_host_path_or_time(notebook: Path) -> None:
    content = nbformat.read(notebook, as_version=4)
    cells = [cell for cell in content.cells if cell.cell_type == "code"]
    assert len(cells) <= 9
    assert all(cell.execution_count for cell in cells)
    for output in (output for cell in cells for output in cell.outputs):
        output.get("data", {}).pop("image/png", None)
    text = json.dumps([cell.outputs for cell in cells])
    for word in (str(NOTEBOOKS.parent), "/home/", "/tmp/", "/dev/shm", "127.0.0.1"):
        assert word not in text, word
    for cell in cells:
        assert "def " not in cell.source
        assert "class " not in cell.source.replace("class_", "")
    assert content.metadata.kernelspec.name == "python3"
    # JupyterLab writes its own name in place of another, and the notebook opens as modified
    assert content.metadata.kernelspec.display_name == "Python 3 (ipykernel)"


def test_a_mistyped_parameter_fails_the_run_with_the_nearest_name(tmp_path: Path) -> None:
    """On the command line, as people type it."""
    run = subprocess.run(
        [
            Path(sys.executable).with_name("papermill"),
            NOTEBOOKS / "03_extraction.ipynb",
            tmp_path / "out.ipynb",
            "-p",
            "concurency",
            "4",
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert run.returncode != 0
    assert "did you mean 'concurrency'" in run.stderr


@pytest.fixture(autouse=True)
def _runs_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HSLIB_RUNS_ROOT", str(tmp_path))


def execute(tmp_path: Path, notebook: str, **parameters: Any) -> None:
    papermill.execute_notebook(
        NOTEBOOKS / notebook, tmp_path / "out.ipynb", parameters, cwd=tmp_path, progress_bar=False
    )


@pytest.mark.slow
def test_a_job_that_cannot_go_on_stops_the_server_it_started(
    tmp_path: Path,
    model_of: Callable[[str], Path],
    warm: WarmServers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the server can tell that it takes no row of that length."""
    (tmp_path / "rows.jsonl").write_text('{"input_ids": [5, 6, 7]}')
    for name, value in warm.for_kernels().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(papermill.PapermillExecutionError, match="the server takes at most"):
        execute(
            tmp_path,
            "03_extraction.ipynb",
            model_path=str(model_of("llama")),
            layers="1,3,5",
            dataset_path="rows.jsonl",
            max_tokens=10_000_000,
        )
    log = tmp_path / "runs/demo/server.log"
    assert log.exists(), "it had been started"
    wait_until("its guard has stopped it", lambda: writers_of(log) == [])


def test_an_attached_server_is_used_and_stays(
    tmp_path: Path, llama_server: server.ServerState, model_of: Callable[[str], Path]
) -> None:
    rows = [{"input_ids": [5, 6, 7]}, {"input_ids": [600]}, {"input_ids": list(range(3, 90))}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    execute(
        tmp_path,
        "03_extraction.ipynb",
        run_dir="my-run",
        model_path=str(model_of("llama")),
        layers="1,3,5",
        dataset_path="rows.jsonl",
        server_url=llama_server.url,
        dump_dir=llama_server.dump_dir,
        max_rejected_share=0.4,
    )
    assert processes.is_alive(llama_server)
    assert writers_of(Path(llama_server.log)), "as would those that are left of a job's own"
    run = tmp_path / "my-run"
    assert list(Store(run / "store").entries) == [0, 2]
    state = read_progress(run)
    assert state is not None
    assert (state.state, state.ok, state.rejected) == ("finished", 2, 1)
    metrics = json.loads((run / "metrics.json").read_text())
    assert (metrics["asked"], metrics["ok"], metrics["faults"]) == (3, 2, 0)
    assert (run / "figures/stored_lengths.png").stat().st_size > 5000
    assert (run / "figures/stored_lengths.csv").read_text().split() == ["num_tokens", "3", "87"]
    shown = (tmp_path / "out.ipynb").read_text()
    assert "out_of_vocabulary" in shown
    assert "1 (1 out_of_vocabulary) rejected" in shown
