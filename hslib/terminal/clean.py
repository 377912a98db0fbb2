"""What a killed job left, removed."""

from pathlib import Path
from typing import Annotated

import typer


def clean(run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR")]) -> int:
    """Remove what a killed job left: its server, its shared memory, its dumps in tmpfs.

    Never what a job at work, another run or another user has. Exit code 1: a job is at work there.
    """
    from hslib.job import leftovers

    done = leftovers.clean(run_dir.absolute())
    print("\n".join(done) or "nothing to remove")
    return 0
