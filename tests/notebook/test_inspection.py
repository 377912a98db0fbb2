"""papermill's own inspection reads every parameter of every notebook, and warns of none."""

import logging
from pathlib import Path

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
