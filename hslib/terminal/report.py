"""A run's notebooks as HTML."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="an executed notebook, or a run's directory")
    ],
) -> int:
    """A notebook, or all of a run, as HTML without code.

    Exit code 1: a notebook had failed or did not run to its end.
    """
    from hslib.job import find_runs, missing_shards
    from hslib.notebook.report import write_reports

    reports = write_reports(path)
    for written in reports:
        print(f"{written.path}: {written.state}")
    print(f"the run's page: {(path if path.is_dir() else path.parent) / 'index.html'}")
    missing = missing_shards(find_runs(path)) if path.is_dir() else 0
    return int(missing > 0 or not all(written.is_good for written in reports))
