"""What notebooks have in common: parameters that papermill reads, figures that no other writes."""

import ast
import itertools
import logging
from pathlib import Path

import nbformat
import papermill
import pytest

from hslib.notebook.execution import parameters_model

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
NOT_SHOWN = {"for_job"}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_papermill_finds_each_parameter_with_type_and_comment(
    notebook: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "papermill"):
        found = papermill.inspect_notebook(notebook)
    assert caplog.messages == []
    model = parameters_model(notebook)
    assert set(found) == set(model.model_fields) - NOT_SHOWN
    for name, parameter in found.items():
        assert parameter["help"], f"{name} has no comment"
        base = parameter["inferred_type_name"].split("[")[0].split("|")[0]
        assert base in ("str", "int", "float", "bool", "dict", "list"), f"{name} has no type"


def test_papermill_knows_each_parameter_that_it_is_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for notebook in NOTEBOOKS:
        given = dict.fromkeys(papermill.inspect_notebook(notebook), "")
        papermill.execute_notebook(notebook, tmp_path / "out.ipynb", given, prepare_only=True)
    assert [m for m in caplog.messages if "nknown" in m or "nable" in m] == []


def saved_figures(notebook: Path) -> set[str]:
    """The names under which a notebook saves its figures."""
    cells = [c.source for c in nbformat.read(notebook, 4).cells if c.cell_type == "code"]
    calls = [n for cell in cells for n in ast.walk(ast.parse(cell)) if isinstance(n, ast.Call)]
    saving = [c for c in calls if getattr(c.func, "attr", "") == "save_figure"]
    return {name.value for call in saving if isinstance(name := call.args[-1], ast.Constant)}


def test_no_two_notebooks_of_a_run_write_the_same_figure() -> None:
    saved = {notebook.stem: saved_figures(notebook) for notebook in NOTEBOOKS}
    assert sum(map(len, saved.values())) > 12
    for one, other in itertools.combinations(saved, 2):
        assert not saved[one] & saved[other], f"{one} and {other}"
