"""The demo's store, for notebooks that read one and are run before notebook 03.

``python -m hslib.demo.run RUN_DIR`` extracts it: a server is started, about a minute, stopped.
"""

import subprocess
import sys
from pathlib import Path

from hslib import extract, serving
from hslib.config import ExtractionParameters, Parameters
from hslib.errors import JobError
from hslib.store import Store


def open_run_store(parameters: Parameters, store_path: Path, named: bool) -> Store:
    """The store of a notebook's run; the demo run's is extracted where there is none yet.

    Args:
        named: whether the user named a store; one that is named must be there.

    Raises:
        StoreError: there is none.
        JobError: the demo could not be extracted.
    """
    is_demo = parameters.run_dir == Parameters.model_fields["run_dir"].default and not named
    if is_demo and not (store_path / "manifest.json").exists():
        parameters.run_path.mkdir(parents=True, exist_ok=True)
        log = parameters.run_path / "demo-extraction.log"
        command = [sys.executable, "-m", "hslib.demo.run", parameters.run_dir]
        # a process of its own: its bars and lines are no output of the notebook that needs it
        with log.open("w") as output:
            code = subprocess.run(command, stdout=output, stderr=output, check=False).returncode
        if code:
            raise JobError(f"the demo could not be extracted (exit code {code})", log=str(log))
    return Store(store_path)


def extract_demo(run_dir: str) -> None:
    """What notebook 03 does with its defaults."""
    parameters = ExtractionParameters(run_dir=run_dir)
    fleet = serving.open_fleet(parameters)
    try:
        extract.run(extract.prepare(parameters, fleet), fleet).require_whole()
    finally:
        fleet.close()


if __name__ == "__main__":
    extract_demo(sys.argv[1])
