"""Every benchmark runs, on its smallest load; its figures mean nothing here."""

import json
import math
import os
import runpy
import sys
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
from real.warm import WarmServers

from hslib.cluster.opening import open_cluster
from hslib.server import launch as server
from hslib.server import processes

HERE = Path(__file__).parent
SCRIPTS = {path.stem for path in HERE.glob("*.py")} - {"common", Path(__file__).stem}

SMALLEST = {
    "encodings": "--samples 2 --tokens 8 --turns 1",
    "rows": "--conversations 20 --workers 1 --turns 1 --words 5",
    "store_copy": "--samples 2 --tokens 8 --threads 2 --turns 1",
    "store_reading": "--samples 3 --tokens 8 --turns 1",
}
SMALLEST_IN_PROCESSES = {  # hand-made servers, moto's, Ray's
    "growth": "--largest 200 --lines 1000",
    "interrupts": "--times 1 --ways terminal",  # the others: tests/real/test_interrupts.py
    "object_store": "--samples 2 --tokens 8 --threads 2 --turns 1",
    "cluster_scale": "--rows 2000 --replicas 2 --faster 400",
}
SMALLEST_ON_SERVERS = {
    "cluster_overhead": "--turns 1 --rows 8",
    "capture_overhead": "--rows 8 --turns 1",
    "encoded_jobs": "--load short --rows 8 --turns 1",
    "json_return": "--load wide16 --rows 4 --json_rows 1 --turns 1",
    "one_at_a_time": "--rows 8 --turns 1",
    "soak": "--rows 8",
    "witness_cost": "--rows 8 --turns 1",
}


def run(script: str, arguments: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a terminal, but in this process: the table is printed, and the figures written."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setattr(sys, "argv", [script, *arguments.split(), "--out", str(out)])
    with mock.patch.dict("os.environ"):
        runpy.run_path(str(HERE / f"{script}.py"), run_name="__main__")
    rows = json.loads(out.read_text())["rows"]
    assert rows
    for figure in (value for row in rows for value in row.values() if isinstance(value, float)):
        assert math.isfinite(figure)


def test_no_benchmark_is_left_out() -> None:
    assert {*SMALLEST, *SMALLEST_IN_PROCESSES, *SMALLEST_ON_SERVERS} == SCRIPTS


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_it_imports(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    assert "main" in runpy.run_path(str(HERE / f"{script}.py"), run_name=script)


@pytest.mark.parametrize("script", SMALLEST)
def test_it_runs(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(script, SMALLEST[script], tmp_path / "out.json", monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("script", SMALLEST_IN_PROCESSES)
def test_it_runs_with_its_processes(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(script, SMALLEST_IN_PROCESSES[script], tmp_path / "out.json", monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("script", SMALLEST_ON_SERVERS)
def test_it_runs_on_a_real_server(
    script: str, warm: WarmServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "spawn", warm.spawn)
    monkeypatch.setattr(processes.stop_group, "__defaults__", (0.0,))  # SGLang would take 5 s
    path = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]  # Ray's processes have it too
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    opening = partial(open_cluster, replica_class=warm.replica_class())
    monkeypatch.setattr("hslib.cluster.opening.open_cluster", opening)
    run(script, SMALLEST_ON_SERVERS[script], tmp_path / "out.json", monkeypatch)
