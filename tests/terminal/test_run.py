"""``run``: papermill's options, what is printed, and the exit code."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from make.notebooks import write_notebook
from make.progress import progress
from make.waits import wait_until

from hslib.job.progress import write_progress
from hslib.terminal import main

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HSLIB_RUNS_ROOT", raising=False)


def test_a_run_that_ends_prints_its_verdict_and_where_the_notebook_is(
    tmp_path: Path, capsys: Captured
) -> None:
    write_notebook(tmp_path / "x.ipynb")
    assert main(["run", "x.ipynb", "-p", "run_dir", "runs/x"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "x.ipynb -> runs/x/x.ipynb"
    assert lines[-3:] == ["All is well.", "", "the executed notebook: runs/x/x.ipynb"]


def test_a_failed_cell_is_exit_code_1_and_the_errors_own_words(
    tmp_path: Path, capsys: Captured
) -> None:
    write_notebook(tmp_path / "x.ipynb", "raise StoreError('it is gone', fix='look elsewhere')")
    assert main(["run", "x.ipynb", "-o", "kept/here.ipynb"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("cell 3: StoreError: it is gone\n  -> look elsewhere\n")
    assert "Traceback" not in said
    assert (tmp_path / "kept/here.ipynb").is_file()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["03", "-p", "concurency", "4"], 1, "did you mean 'concurrency'"),
        (["03", "-y", "{limit: 4, server_url: [a, 5]}"], 1, "'server_url' is"),
        (["3"], 1, "03_extraction"),
        (["03", "-p", "limit"], 2, "-p NAME VALUE"),
        (["03", "-p", "limit=4", "-o", "x"], 2, "-p NAME VALUE"),
        (["03", "-y", "[1]"], 2, "has no names"),
        (["03", "-y", "{"], 2, "is not YAML"),
    ],
)
def test_what_can_not_be_run_says_so_before_a_kernel_starts(
    arguments: list[str], code: int, message: str, tmp_path: Path, capsys: Captured
) -> None:
    assert main(["run", *arguments]) == code
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_lists_come_by_yaml_and_a_date_stays_text(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = []
    monkeypatch.setattr("hslib.notebook.execution.execute", lambda run: planned.append(run) or "")
    given = "{server_url: [http://a, http://b], dump_dir: [a, b], dataset_path: 2026-01-30}"
    assert main(["run", "03", "-y", given, "-p", "limit", "3", "-p", "layers", "-1"]) == 0
    assert planned[0].given == {
        "server_url": ["http://a", "http://b"],
        "dump_dir": ["a", "b"],
        "dataset_path": "2026-01-30",
        "limit": 3,
        "layers": "-1",
    }


def test_what_the_last_job_has_stored_is_said_before_a_server_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr("hslib.notebook.execution.execute", lambda _run: "")
    words = "the last job here has stored 35 of 100 rows"
    for state, is_said in (("finished", True), ("interrupted", False)):
        write_progress(tmp_path, progress(state=state))
        assert main(["run", "03", "-p", "run_dir", str(tmp_path)]) == 0
        assert (words in capsys.readouterr().out) == is_said


WAITS = """import time
from pathlib import Path

Path("begun").touch()
try:
    time.sleep(60)
except KeyboardInterrupt:
    Path("told").touch()
    raise"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_kernel_as_an_interrupt_and_is_exit_code_130(
    number: signal.Signals, tmp_path: Path
) -> None:
    write_notebook(tmp_path / "x.ipynb", WAITS)
    # a shell's background job ignores SIGINT, and so would what it starts
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from hslib.terminal import main\nsys.exit(main(['run', 'x.ipynb']))"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as run:
        wait_until("the last cell", (tmp_path / "begun").exists)
        run.send_signal(number)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "interrupted: run the same command again" in said
    assert "Traceback" not in said and "IPKernelApp" not in said, said  # of the dying kernel
    assert (tmp_path / "told").exists()
