"""A notebook run without a person at it: found, its parameters checked, executed by papermill."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hslib
from hslib import parameters as parameters_of_notebooks
from hslib.errors import JobError, ParameterError
from hslib.notebook.report.notebook_file import state_of, verdict_of
from hslib.notebook.traceback_file import TRACEBACK_FILE
from hslib.parameters import Parameters

_READS_PARAMETERS = re.compile(r"\bread_parameters\((\w+),")


@dataclass(frozen=True)
class PlannedRun:
    """A notebook with the parameters that it is given, all of them checked."""

    notebook: Path
    parameters: Parameters
    output: Path
    given: Mapping[str, Any]  # by name, typed: what papermill injects


def find_notebook(name: str) -> Path:
    """A notebook by its path, its name or its number; those of the kit lie in ``notebooks/``.

    Raises:
        ParameterError: there is none.
    """
    if name.endswith(".ipynb"):
        if not Path(name).is_file():
            raise ParameterError("the notebook is missing", path=name, fix="check the path")
        return Path(name).absolute()
    known = {path.stem: path for folder in _folders() for path in _numbered(folder)}
    found = [path for stem, path in known.items() if name in (stem, stem.split("_")[0])]
    if found:
        return found[0]
    if not known:
        raise ParameterError(
            "the folder notebooks/ is missing",
            looked_in=[str(folder) for folder in _folders()],
            fix="run this in the checkout of the kit, or give the notebook's path",
        )
    raise ParameterError(
        f"no notebook is called {name!r}",
        fix=f"give one of {', '.join(sorted(known))}, its number alone, or a path",
    )


def _folders() -> list[Path]:
    """Where the kit's notebooks may lie; the checkout that this code is of counts most."""
    return [Path.cwd(), Path("notebooks").absolute(), Path(hslib.__file__).parents[1] / "notebooks"]


def _numbered(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9][0-9]_*.ipynb"))


def plan_run(notebook: Path, values: Mapping[str, Any], output: Path | None = None) -> PlannedRun:
    """Check parameters before a kernel starts; the output is in the run's directory if not given.

    Args:
        values: as text or typed; the notebook gets them in its parameters' types.

    Raises:
        ParameterError: an unknown name, a bad value, or a notebook that reads no parameters.
    """
    model = parameters_model(notebook)
    parameters = model.from_values(dict(values))
    given = parameters.model_dump(mode="json", exclude_unset=True)
    return PlannedRun(notebook, parameters, output or parameters.run_path / notebook.name, given)


def parameters_model(notebook: Path) -> type[Parameters]:
    """The class that the notebook hands to ``read_parameters``.

    Raises:
        ParameterError: it is no notebook, or hands over none.
    """
    import nbformat

    try:
        nb = nbformat.read(notebook, as_version=4)
    except (OSError, ValueError, nbformat.reader.NotJSONError) as error:
        raise ParameterError("this is not a notebook", path=str(notebook)) from error
    for cell in nb.cells:
        if cell.cell_type == "code" and (called := _READS_PARAMETERS.search(cell.source)):
            model = getattr(parameters_of_notebooks, called[1], None)
            if isinstance(model, type) and issubclass(model, Parameters):
                return model
    raise ParameterError(
        "this notebook reads no parameters of the kit",
        path=str(notebook),
        fix="run it by papermill itself",
    )


def execute(run: PlannedRun) -> str:
    """Run it to its end, with papermill's bar in a terminal; returns the verdict.

    An earlier one that ran to its end is kept as ``NAME.1.ipynb`` until this one has, too.

    Raises:
        JobError: a cell failed, in its own words, or the kernel died.
    """
    import papermill
    from nbclient.exceptions import DeadKernelError
    from traitlets.config import Config

    run.output.parent.mkdir(parents=True, exist_ok=True)
    (run.parameters.run_path / TRACEBACK_FILE).unlink(missing_ok=True)
    earlier = _keep_finished(run.output)
    config = Config()
    config.KernelManager.transport_encryption = "auto"  # else each kernel warns of plain TCP
    # a kernel that is interrupted, or shut down, logs a traceback of its own sockets
    config.NotebookClient.extra_arguments = ["--log-level=CRITICAL"]
    try:
        nb = papermill.execute_notebook(
            run.notebook, run.output, run.given, progress_bar={"disable": None}, config=config
        )
    except papermill.PapermillExecutionError as error:
        raise JobError(_in_its_own_words(error, run)) from None
    except DeadKernelError:
        raise JobError(
            "the notebook's kernel died: it was killed, or the memory was full",
            path=str(run.output),
            fix="run the same command again: a job goes on where it was",
        ) from None
    earlier.unlink(missing_ok=True)
    return verdict_of(nb)


def _keep_finished(output: Path) -> Path:
    """Where an executed notebook that ran to its end is moved, out of the way of the next."""
    import nbformat

    kept = output.with_suffix(".1.ipynb")
    try:
        is_finished = state_of(nbformat.read(output, as_version=4))[0] == "ok"
    except (OSError, ValueError, nbformat.reader.NotJSONError):
        return kept
    if is_finished:
        output.replace(kept)
    return kept


def _in_its_own_words(error: Any, run: PlannedRun) -> str:
    """The failed cell's error; one that is not the kit's has its type too, and its traceback."""
    told = f"cell {error.exec_count}: {error.ename}: {error.evalue}"
    kept = run.parameters.run_path / TRACEBACK_FILE
    return f"{told}\ntraceback: {kept}" if kept.is_file() else told
