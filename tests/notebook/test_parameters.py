"""Parameters out of a kernel's namespace, as papermill, nbval and JupyterLab leave it there."""

from pathlib import Path
from typing import Any

import pytest

from hslib.errors import ParameterError
from hslib.notebook import read_parameters
from hslib.parameters import ExtractionParameters, ServerParameters


def kernel(**names: Any) -> dict[str, Any]:
    """A kernel in which imports and a parameters cell have run."""
    ipython = {"In": ["", "run_dir = 'r'"], "Out": {}, "_": "", "_i": "run_dir", "__name__": "x"}
    return {**ipython, "pytest": pytest, "run_dir": "r", "limit": 0, **names}


def test_literals_are_parameters_and_what_ipython_and_imports_leave_is_none() -> None:
    found = read_parameters(ExtractionParameters, kernel())
    assert (found.run_dir, found.limit) == ("r", 0)


def test_a_value_that_papermill_injected_wins() -> None:
    assert read_parameters(ExtractionParameters, kernel(limit=5)).limit == 5


@pytest.mark.parametrize("value", [4, "4", [4], None, {"a": 4}, 0.4, True])
def test_a_mistyped_name_is_an_error_whatever_its_value(value: Any) -> None:
    with pytest.raises(
        ParameterError, match=r"did you mean 'concurrency'[\s\S]*restart the kernel"
    ):
        read_parameters(ExtractionParameters, kernel(concurency=value))


def test_a_name_that_resembles_no_parameter_is_an_error_too() -> None:
    with pytest.raises(ParameterError, match="unknown parameter 'zzz'"):
        read_parameters(ExtractionParameters, kernel(zzz=1))


def test_a_cell_that_is_run_again_ignores_later_variables_but_no_mistyped_name() -> None:
    later = kernel(config=ExtractionParameters(), title="a figure's", numbers=[1, 2], limit=7)
    assert read_parameters(ExtractionParameters, later).limit == 7
    with pytest.raises(ParameterError, match="did you mean 'limit'"):
        read_parameters(ExtractionParameters, {**later, "limt": 7})


def test_an_old_name_counts_also_when_the_cell_is_run_again() -> None:
    later = {"run_dir": "r", "concurrency": 9, "config": ServerParameters()}
    for namespace in ({"run_dir": "r", "concurrency": 9}, later):
        with pytest.warns(UserWarning, match="dumps_at_once"):
            assert read_parameters(ServerParameters, namespace).dumps_at_once == 9


def test_a_bad_value_is_named_and_asks_for_no_restart() -> None:
    with pytest.raises(ParameterError, match="'concurrency'") as error:
        read_parameters(ExtractionParameters, kernel(concurrency=0))
    assert "restart" not in str(error.value)


def test_a_kernel_without_a_parameters_cell_says_so() -> None:
    with pytest.raises(ParameterError, match="from the top"):
        read_parameters(ExtractionParameters, {"x": 1})


def test_a_run_is_the_same_folder_from_jupyterlab_and_from_papermill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JupyterLab's kernel starts in notebooks/, papermill's in the project."""
    (tmp_path / "hslib").mkdir()
    (tmp_path / "hslib/__init__.py").touch()
    (tmp_path / "notebooks").mkdir()
    monkeypatch.delenv("HSLIB_RUNS_ROOT", raising=False)
    found = []
    for folder in (tmp_path / "notebooks", tmp_path):
        monkeypatch.chdir(folder)
        config = read_parameters(ExtractionParameters, kernel(dataset_path="rows.jsonl"))
        found.append((config.run_path, config.store_path, config.dataset_source))
    assert found[0] == found[1]
    assert found[0][0] == tmp_path / "r"


def test_a_folder_that_is_only_called_notebooks_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notebooks").mkdir()
    monkeypatch.delenv("HSLIB_RUNS_ROOT", raising=False)
    monkeypatch.chdir(tmp_path / "notebooks")
    assert read_parameters(ExtractionParameters, kernel()).run_path == tmp_path / "notebooks/r"
