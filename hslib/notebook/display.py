"""What a notebook shows and keeps: tables, figures with their numbers, metrics."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hslib.notebook.tracker import log_metrics
from hslib.parameters import TrackedParameters

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


def table(facts: Mapping[str, Any], columns: Sequence[str] = ("", "")) -> "pandas.DataFrame":
    """A two-column table of facts, without an index column's numbers in the way."""
    import pandas

    pandas.set_option("display.max_colwidth", 200)
    return pandas.DataFrame(
        {columns[1]: [str(value) for value in facts.values()]}, index=list(facts)
    ).rename_axis(columns[0])


class _Scrolling:
    """A long table in a box of its own: a notebook stays readable around it."""

    def __init__(self, frame: "pandas.DataFrame") -> None:
        self.frame = frame

    def _repr_html_(self) -> str:
        lines = self.frame.to_html(
            index=False, border=0, justify="left", float_format="%.3g", na_rep=""
        )
        return f'<div style="max-height:24em;overflow:auto">{lines}</div>'

    def __repr__(self) -> str:
        return f"a table of {len(self.frame)} lines"


def long_table(frame: "pandas.DataFrame", empty: str = "Nothing.") -> Any:
    """A table that scrolls; where there is no line, the words ``empty``."""
    from IPython.display import Markdown

    return Markdown(empty) if frame.empty else _Scrolling(frame)


def rounded(frame: "pandas.DataFrame", digits: int = 2, **decimals: int) -> "pandas.DataFrame":
    """Numbers as text of so many significant digits: what a repeated run shows again.

    Batching changes the last bits of bf16 states from run to run, and so the last digits of
    everything that is computed from them.

    Args:
        decimals: columns that are near zero, and how many decimals they get instead.
    """
    shown = frame.copy().astype(object)
    for name in shown.columns:
        places = decimals.get(name)
        shown[name] = [_rounded(value, digits, places) for value in frame[name]]
    return shown


def _rounded(value: Any, digits: int, decimals: int | None) -> Any:
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return "" if math.isnan(value) else str(value)
    if decimals is not None:
        return f"{value:z.{decimals}f}"
    if abs(value) >= 10**digits:
        return f"{float(f'{value:.{digits}g}'):,.0f}"
    return f"{value:.{digits}g}"


def wide(frame: "pandas.DataFrame") -> Any:
    """A table whose long texts break into lines and keep to the left."""
    from IPython.display import HTML

    left = [{"selector": "th, td", "props": "text-align: left; vertical-align: top"}]
    broken = {"white-space": "normal", "overflow-wrap": "break-word", "text-align": "left"}
    plain = frame.reset_index() if frame.index.name else frame
    style = plain.style.hide(axis="index").set_properties(**broken).set_table_styles(left)
    return HTML(style.set_uuid("wide").format(escape="html").to_html())


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
