"""A job that runs in another process, and what can be seen of it from here."""

import subprocess
from pathlib import Path

from make import jobs
from make.rows import random_sample, write_rows

from hslib.job.progress import read_progress
from hslib.parameters import ExtractionParameters
from hslib.server import launch as server

NOTEBOOK = Path(__file__).parents[2] / "notebooks/03_extraction.ipynb"


def parameters_for(
    state: server.ServerState, model: Path, folder: Path, rows: int, **values: object
) -> ExtractionParameters:
    samples = [random_sample(i, 5 + i % 60, seed=71) for i in range(rows)]
    return ExtractionParameters.from_values(
        {
            "run_dir": str(folder / "run"),
            "server_url": state.url,
            "dump_dir": state.dump_dir,
            "model_path": str(model),
            "layers": "1,3,5",
            "dataset_path": str(write_rows(folder / "rows.jsonl", samples)),
            "concurrency": 4,
            "samples_per_request": 1,
            **values,
        }
    )


def start_job(wanted: ExtractionParameters) -> "subprocess.Popen[bytes]":
    return jobs.start(wanted, stderr=subprocess.PIPE)


def stored(run_path: Path) -> int:
    """Rows that the running job says it has stored."""
    state = read_progress(run_path)
    return state.ok if state else 0


def journal_lines(wanted: ExtractionParameters) -> int:
    path = wanted.store_path / "journal.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
