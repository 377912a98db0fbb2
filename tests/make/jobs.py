"""Jobs on servers that run already: in this process, or in one that can be killed."""

import subprocess
import sys
from typing import Any

from hslib import extract
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
