"""A run's metrics as an MLflow or W&B run, beside ``metrics.json``; neither package is required.

Where a tracker keeps its runs is its own affair: ``MLFLOW_TRACKING_URI``, ``WANDB_PROJECT``,
``WANDB_MODE`` and the like. All notebooks of a run are one run there, whose id is in
``tracker.json``.
"""

import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hslib.files import write_atomically


def log_metrics(tracker: str, run_path: Path, numbers: Mapping[str, Any]) -> None:
    """Log what are numbers among ``numbers``, nested names joined by dots, lists by positions.

    What the tracker refuses is a warning: ``metrics.json`` has the numbers.

    Args:
        tracker: "mlflow" or "wandb"; "" does nothing.
    """
    if not tracker:
        return
    try:
        _TRACKERS[tracker](run_path, flat_numbers(numbers))
    except Exception as error:  # of its server, login or network: no reason to end a finished job
        warnings.warn(f"{tracker} has not taken the metrics: {error}", stacklevel=2)


def flat_numbers(numbers: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Finite numbers by name: ``{"witness": {"final": 0.1}}`` becomes ``witness.final``. Pure."""
    found: dict[str, float] = {}
    for name, value in numbers.items():
        if isinstance(value, list | tuple):
            value = {str(position): one for position, one in enumerate(value, start=1)}
        if isinstance(value, Mapping):
            found |= flat_numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and math.isfinite(value):
            found[f"{prefix}{name}".replace(" ", "_")] = float(value)
    return found


def _log_to_mlflow(run_path: Path, numbers: dict[str, float]) -> None:
    import mlflow

    known = _known_id(run_path, "mlflow")
    name = None if known else run_path.name
    with mlflow.start_run(run_id=known, run_name=name) as run:
        mlflow.log_metrics(numbers)
        _keep_id(run_path, "mlflow", run.info.run_id)


def _log_to_wandb(run_path: Path, numbers: dict[str, float]) -> None:
    import wandb

    run = wandb.init(id=_known_id(run_path, "wandb"), name=run_path.name, resume="allow")
    run.log(numbers)
    _keep_id(run_path, "wandb", run.id)
    run.finish()


_TRACKERS = {"mlflow": _log_to_mlflow, "wandb": _log_to_wandb}


def _ids(run_path: Path) -> dict[str, str]:
    try:
        return dict(json.loads((run_path / "tracker.json").read_text()))
    except FileNotFoundError:
        return {}


def _known_id(run_path: Path, tracker: str) -> str | None:
    return _ids(run_path).get(tracker)


def _keep_id(run_path: Path, tracker: str, run_id: str) -> None:
    ids = {**_ids(run_path), tracker: run_id}
    write_atomically(run_path / "tracker.json", json.dumps(ids).encode())
