"""Small notebooks of the kit's form, to be run in a kernel."""

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

READS = """from hslib import notebook
from hslib.errors import StoreError
from hslib.parameters import Parameters

config = notebook.read_parameters(Parameters, globals())"""


def write_notebook(path: Path, verdict: str = "print('All is well.')", reads: str = READS) -> Path:
    """Parameters, ``read_parameters``, and a last cell under "Verdict"."""
    parameters = new_code_cell('run_dir: str = "runs/demo"  # what it makes')
    parameters.metadata.tags = ["parameters"]
    cells = [parameters, new_code_cell(reads), new_markdown_cell("## Verdict")]
    nb = new_notebook(cells=[*cells, new_code_cell(verdict)])
    nb.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nb, path)
    return path
