"""What a notebook keeps of what it shows: figures with their numbers, metrics."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hslib.notebook.tracker import log_metrics
from hslib.parameters import TrackedParameters

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


def save_figure(figure: "Figure", numbers: "pandas.DataFrame", run_path: Path, name: str) -> Any:
    """Write ``figures/{name}.png`` and the numbers behind it as ``{name}.csv``; shows the PNG."""
    from IPython.display import Image

    folder = run_path / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    figure.savefig(path, dpi=150, bbox_inches="tight")
    numbers.to_csv(path.with_suffix(".csv"), index=False)
    return Image(filename=path, width=750)


def save_metrics(config: TrackedParameters, **numbers: Any) -> Path:
    """Merge numbers into ``metrics.json``, and into the tracker's run if one is asked for."""
    run_path = config.run_path
    path = run_path / "metrics.json"
    run_path.mkdir(parents=True, exist_ok=True)
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, **numbers}, indent=1, sort_keys=True))
    log_metrics(config.tracker, run_path, numbers)
    return path
