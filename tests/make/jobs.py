"""Jobs on servers that run already: in this process, or in one that can be killed."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fakes.server import FakeServer
from make.rows import write_rows

from hslib import extract
from hslib.dataset import Sample
from hslib.parameters import ExtractionParameters
from hslib.server.endpoints import open_endpoints

# A program: parameters as JSON in its argument; "ready" is out before the first request.
_JOB = """
import sys
from hslib import extract
from hslib.parameters import ExtractionParameters
from hslib.server.endpoints import open_endpoints
parameters = ExtractionParameters.model_validate_json(sys.argv[1])
endpoints = open_endpoints(parameters)
job = extract.prepare(parameters, endpoints)
print("ready", flush=True)
extract.run(job, endpoints)
print("ended in order", flush=True)
"""


def wanted(
    fake: FakeServer, folder: Path, samples: Sequence[Sample], **values: Any
) -> ExtractionParameters:
    """A job for these rows on a hand-made server."""
    given = {
        "run_dir": str(folder / "run"),
        "dataset_path": str(write_rows(folder / "rows.jsonl", samples)),
        "model_path": str(fake.model),
        "layers": "1,3,5",
        "server_url": fake.url,
        "dump_dir": str(fake.dumps),
    }
    return ExtractionParameters.from_values({**given, **values})


def prepare(parameters: ExtractionParameters) -> extract.Job:
    return extract.prepare(parameters, open_endpoints(parameters))


def run(parameters: ExtractionParameters) -> extract.Result:
    endpoints = open_endpoints(parameters)
    return extract.run(extract.prepare(parameters, endpoints), endpoints)


def start(parameters: ExtractionParameters, **pipes: Any) -> "subprocess.Popen[bytes]":
    """The same in a process of its own; what it says goes nowhere, or into these pipes."""
    return subprocess.Popen(
        [sys.executable, "-u", "-c", _JOB, parameters.model_dump_json()],
        **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **pipes},
    )
