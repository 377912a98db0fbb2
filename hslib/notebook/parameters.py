"""A notebook's parameters out of its kernel.

A kernel knows neither its notebook's file nor the tags of its cells: papermill and nbval pass
no path, and JupyterLab's file lags behind what is typed. So the names come from the kernel's
own namespace, which is there under all three. Before the first ``read_parameters`` every public
name with a literal value counts as a parameter; when the cell is run again, with variables of
later cells around, only names that are a parameter's or resemble one.
"""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from hslib.errors import ParameterError
from hslib.notebook.traceback_file import keep_tracebacks
from hslib.parameters import Parameters

P = TypeVar("P", bound=Parameters)

_LITERALS = (str, int, float, bool, list, dict, type(None))
_IPYTHON = {"In", "Out"}


def read_parameters(model: type[P], namespace: Mapping[str, Any]) -> P:
    """Build a notebook's parameters from its ``globals()``.

    The kernel then works in the project's folder: see :func:`leave_notebooks_folder`.
    The traceback of a cell that fails from now on is a file of the run.

    Raises:
        ParameterError: an unknown name (with the nearest known one), a bad value, or no
            parameter in the namespace.
    """
    leave_notebooks_folder()
    values = {name: value for name, value in namespace.items() if _is_literal(name, value)}
    known = {*model.model_fields, *model.renamed}
    if any(isinstance(value, Parameters) for value in namespace.values()):  # read before
        values = {n: v for n, v in values.items() if n in known or _resembles_one(n, known)}
    if not known & set(values):
        raise ParameterError(
            "no parameters cell has run in this kernel", fix="run the notebook from the top"
        )
    try:
        found = model.from_values(values)
    except ParameterError as error:
        if set(values) <= known:
            raise
        cure = "correct it; in JupyterLab restart the kernel too"
        raise ParameterError(error.message, fix=cure) from None
    keep_tracebacks(found.run_path)
    return found


def leave_notebooks_folder() -> None:
    """JupyterLab starts a kernel in the kit's ``notebooks/``, papermill in the folder above it.

    From both, a relative path means the same file: it is relative to the folder above.
    """
    here = Path.cwd()
    if here.name == "notebooks" and (here.parent / "hslib" / "__init__.py").is_file():
        os.chdir(here.parent)


def _is_literal(name: str, value: object) -> bool:
    return isinstance(value, _LITERALS) and not name.startswith("_") and name not in _IPYTHON


def _resembles_one(name: str, known: set[str]) -> bool:
    return bool(difflib.get_close_matches(name, known, n=1, cutoff=0.8))
