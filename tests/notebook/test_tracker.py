"""Metrics as a run of MLflow or W&B, by the calls that the kit makes: neither is required here."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hslib import notebook
from hslib.errors import ParameterError
from hslib.notebook.tracker import flat_numbers, log_metrics
from hslib.parameters import StatisticsParameters


def test_only_finite_numbers_are_logged_under_joined_names() -> None:
    numbers = {"ok": 3, "witness": {"boundary 2": 0.1, "final": None}, "a": "x", "b": float("nan")}
    assert flat_numbers(numbers) == {"ok": 3.0, "witness.boundary_2": 0.1}
    accepted = {"drafters": {"right": (0.8, 0.6)}}
    assert flat_numbers(accepted) == {"drafters.right.1": 0.8, "drafters.right.2": 0.6}


def test_a_tracker_that_fails_ends_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = ModuleType("wandb")  # as of a host without a login: it has no init
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    with pytest.warns(UserWarning, match="wandb has not taken the metrics"):
        log_metrics("wandb", tmp_path, {"ok": 3})


def test_a_tracker_that_is_not_installed_is_said_with_its_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ParameterError, match="pip install wandb"):
        StatisticsParameters.from_values({"tracker": "wandb"})
    with pytest.raises(ParameterError, match="tracker"):
        StatisticsParameters.from_values({"tracker": "tensorboard"})


def test_without_a_tracker_nothing_is_loaded_or_written(tmp_path: Path) -> None:
    notebook.save_metrics(StatisticsParameters(run_dir=str(tmp_path)), ok=1)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.json"]
    assert not {"mlflow", "wandb"} & sys.modules.keys()


def test_all_notebooks_of_a_run_are_one_run_of_the_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls that the kit makes of wandb, which is not required here."""
    calls: list[tuple[str, Any]] = []

    class Run:
        id = "r1"

        def log(self, numbers: dict[str, float]) -> None:
            calls.append(("log", numbers))

        def finish(self) -> None:
            calls.append(("finish", None))

    wandb = ModuleType("wandb")
    wandb.init = lambda **given: (calls.append(("init", given)), Run())[1]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    log_metrics("wandb", tmp_path, {"ok": 3})
    log_metrics("wandb", tmp_path, {"anomalies": 0})
    assert calls[0] == ("init", {"id": None, "name": tmp_path.name, "resume": "allow"})
    assert calls[3] == ("init", {"id": "r1", "name": tmp_path.name, "resume": "allow"})
    assert [what for what, _ in calls] == ["init", "log", "finish"] * 2
    assert json.loads((tmp_path / "tracker.json").read_text()) == {"wandb": "r1"}


def test_mlflow_goes_on_with_the_run_that_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[dict[str, Any]] = []
    logged: list[dict[str, float]] = []

    class Active:
        info = SimpleNamespace(run_id="m1")

        def __enter__(self) -> "Active":
            return self

        def __exit__(self, *_: object) -> None: ...

    mlflow = ModuleType("mlflow")
    mlflow.start_run = lambda **given: (begun.append(given), Active())[1]  # type: ignore[attr-defined]
    mlflow.log_metrics = logged.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    log_metrics("mlflow", tmp_path, {"ok": 3})
    log_metrics("mlflow", tmp_path, {"anomalies": 0})
    assert begun == [
        {"run_id": None, "run_name": tmp_path.name},
        {"run_id": "m1", "run_name": None},
    ]
    assert logged == [{"ok": 3.0}, {"anomalies": 0.0}]
