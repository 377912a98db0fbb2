"""A notebook run from the terminal: found, checked before a kernel starts, executed, told."""

from pathlib import Path

import nbformat
import pytest
from make.notebooks import write_notebook

from hslib.errors import JobError, ParameterError
from hslib.notebook.execution import (
    PlannedRun,
    execute,
    find_notebook,
    parameters_model,
    plan_run,
)
from hslib.notebook.report import write_report, write_reports
from hslib.parameters import ExtractionParameters, Parameters

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HSLIB_RUNS_ROOT", raising=False)


# --- found --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["03", "03_extraction"])
def test_a_notebook_is_found_by_number_or_name_from_anywhere(name: str) -> None:
    assert find_notebook(name) == NOTEBOOKS / "03_extraction.ipynb"


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    write_notebook(tmp_path / "mine.ipynb")
    assert find_notebook("mine.ipynb") == tmp_path / "mine.ipynb"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("3", "no notebook is called '3'[\\s\\S]*03_extraction"),
        ("mine.ipynb", "is missing.*mine.ipynb"),
    ],
)
def test_a_notebook_that_is_not_there_is_named(name: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        find_notebook(name)


def test_without_a_checkout_the_folders_that_were_looked_into_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hslib.__file__", str(tmp_path / "site-packages/hslib/__init__.py"))
    with pytest.raises(ParameterError, match=r"notebooks/ is missing.*site-packages"):
        find_notebook("03")
    write_notebook(tmp_path / "notebooks/03_extraction.ipynb")
    assert find_notebook("03") == tmp_path / "notebooks/03_extraction.ipynb"


# --- planned ------------------------------------------------------------------------------


def test_the_output_is_in_the_runs_directory_and_values_have_the_parameters_types() -> None:
    found = plan_run(
        NOTEBOOKS / "03_extraction.ipynb",
        {"run_dir": "runs/mine", "limit": "8", "strict": "True", "layers": 3},
    )
    assert found.output == Path("runs/mine/03_extraction.ipynb").absolute()
    assert found.given == {"run_dir": "runs/mine", "limit": 8, "strict": True, "layers": "3"}
    assert isinstance(found.parameters, ExtractionParameters)


def test_a_value_under_an_old_name_reaches_the_notebook_under_the_new_one() -> None:
    with pytest.warns(UserWarning, match="dumps_at_once"):
        found = plan_run(NOTEBOOKS / "02_server_launch.ipynb", {"concurrency": "9"})
    assert found.given == {"dumps_at_once": 9}


def test_an_unknown_name_is_an_error_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="did you mean 'concurrency'"):
        plan_run(NOTEBOOKS / "03_extraction.ipynb", {"concurency": "4"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("notebook", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_each_notebook_says_which_parameters_it_reads(notebook: Path) -> None:
    assert issubclass(parameters_model(notebook), Parameters)


def test_what_is_no_notebook_of_the_kit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="reads no parameters"):
        parameters_model(write_notebook(tmp_path / "other.ipynb", reads="x = 1"))
    (tmp_path / "text.ipynb").write_text("no JSON")
    with pytest.raises(ParameterError, match="not a notebook"):
        parameters_model(tmp_path / "text.ipynb")


# --- executed -----------------------------------------------------------------------------


def run_of(tmp_path: Path, verdict: str) -> PlannedRun:
    return plan_run(write_notebook(tmp_path / "x.ipynb", verdict), {"run_dir": "runs/x"})


def test_the_verdict_comes_back_and_the_kernel_says_nothing_beside_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tmp_path, "print(config.run_dir)\nnotebook.verdict('All is well.')")
    assert execute(run) == "runs/x\nAll is well."
    assert run.output.is_file()
    out, err = capfd.readouterr()
    assert out == ""
    assert "WARNING" not in err and "encryption" not in err  # ipykernel may stumble at its end


def test_an_error_of_the_kit_is_its_message_fields_and_cure_everywhere(tmp_path: Path) -> None:
    error = "StoreError('the store is gone', path='there', index=3, fix='look elsewhere')"
    run = run_of(tmp_path, f"def deep():\n    raise {error}\n\ndeep()")
    with pytest.raises(JobError) as told:
        execute(run)
    expected = (
        "cell 4: StoreError: the store is gone [path='there', index=3]\n  -> look elsewhere\n"
    )
    assert str(told.value).startswith(expected)
    shown = [
        "StoreError: the store is gone",
        "  path = 'there'",
        "  index = 3",
        "  -> look elsewhere",
    ]
    (output,) = nbformat.read(run.output, as_version=4).cells[-1].outputs
    assert output.traceback == shown
    page = write_report(run.output).path.read_text()
    assert "look elsewhere" in page and "Traceback (most" not in page
    assert "in deep" in (tmp_path / "runs/x/traceback.log").read_text(), "for who mends the kit"


def test_a_run_that_fails_leaves_the_earlier_one_that_ran_to_its_end(tmp_path: Path) -> None:
    execute(run_of(tmp_path, "notebook.verdict('whole')"))
    for _again in range(2):
        with pytest.raises(JobError):
            execute(run_of(tmp_path, "1 / 0"))
    folder = tmp_path / "runs/x"
    assert sorted(path.name for path in folder.glob("*.ipynb")) == ["x.1.ipynb", "x.ipynb"]
    assert "whole" in (folder / "x.1.ipynb").read_text()
    assert [report.state for report in write_reports(folder)] == ["ok", "failed"]
    execute(run_of(tmp_path, "notebook.verdict('whole')"))
    assert [path.name for path in folder.glob("*.ipynb")] == ["x.ipynb"]


def test_any_other_error_keeps_its_traceback_in_the_notebook(tmp_path: Path) -> None:
    run = run_of(tmp_path, "{}['a key']")
    with pytest.raises(JobError, match=r"cell 4: KeyError: 'a key'\ntraceback: .*traceback.log"):
        execute(run)
    (output,) = nbformat.read(run.output, as_version=4).cells[-1].outputs
    assert "Traceback (most recent call last)" in "\n".join(output.traceback)


def test_a_kernel_that_dies_is_called_dead_with_the_cure(tmp_path: Path) -> None:
    run = run_of(tmp_path, "import os\nos._exit(9)")
    with pytest.raises(JobError, match=r"kernel died[\s\S]*same command again"):
        execute(run)
