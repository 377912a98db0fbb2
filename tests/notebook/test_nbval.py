"""nbval compares what notebooks show: a number edited in an output is a failure, and only that."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from real.warm import WarmServers

NOTEBOOK = Path(__file__).parents[2] / "notebooks/04_statistics.ipynb"
# cell, what stands in one of its outputs, and what is put there: stream, HTML table, scrolling one
EDITS = (
    ("cell-04", "59.4 MB", "61.4 MB"),
    ("cell-08", "<td>43</td>", "<td>44</td>"),
    ("cell-14", ">0.52</td>", ">0.53</td>"),
    ("cell-16", "32% can be saved", "33% can be saved"),
)


@pytest.mark.slow
def test_an_edited_number_fails_its_cell_and_no_other(tmp_path: Path, warm: WarmServers) -> None:
    """From nothing: the notebook extracts the demo first."""
    nb = nbformat.read(NOTEBOOK, as_version=4)
    for cell_id, stands, put in EDITS:
        cell = next(cell for cell in nb.cells if cell.id == cell_id)
        before = json.dumps(cell.outputs)
        assert stands in before, (cell_id, stands)
        cell.outputs = nbformat.from_dict(json.loads(before.replace(stands, put)))
    nbformat.write(nb, tmp_path / "edited.ipynb")
    command = [sys.executable, "-m", "pytest", "--nbval", "-p", "no:cacheprovider", "-rA", "-q"]
    run = subprocess.run(
        [*command, "edited.ipynb"],
        cwd=tmp_path,
        env={**os.environ, **warm.for_kernels(), "HSLIB_RUNS_ROOT": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    code = [cell.id for cell in nb.cells if cell.cell_type == "code"]
    failed = {code[int(n)] for n in re.findall(r"^FAILED \S+::Cell (\d+)", run.stdout, re.M)}
    passed = {code[int(n)] for n in re.findall(r"^PASSED \S+::Cell (\d+)", run.stdout, re.M)}
    assert failed == {cell_id for cell_id, _, _ in EDITS}, run.stdout[-3000:]
    assert failed | passed == set(code)
