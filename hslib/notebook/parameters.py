"""What notebooks need around hslib's calls: parameters checked, tables shown, numbers kept."""

import ast
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hslib.errors import ParameterError
from hslib.notebook.live import LiveOutput
from hslib.parameters import Parameters

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

P = TypeVar("P", bound=Parameters)

# papermill writes "# Parameters" on top of the cell that it injects; the notebook's own cell
# starts with "# parameters of this run".
_OWN = re.compile(r"\A#\s*parameters\b")
_INJECTED = re.compile(r"\A#\s*Parameters\b")


def read_parameters(model: type[P], namespace: Mapping[str, Any]) -> P:
    """Build a notebook's parameters from its ``globals()``.

    The names are those that the last ``parameters`` cell and the last cell injected by
    papermill assign, so that a mistyped one is an error and not a default kept in silence.

    Raises:
        ParameterError: an unknown name (with the nearest known one), or a bad value.
    """
    names: set[str] = set()
    history = [source for source in namespace.get("In", []) if isinstance(source, str)]
    for pattern in (_OWN, _INJECTED):
        cells = [source for source in history if pattern.match(source.lstrip())]
        if cells:
            names |= assigned_names(cells[-1])
    if not history[1:]:  # a runner that keeps no history, such as nbval
        names = {name for name, value in namespace.items() if _looks_like_parameter(name, value)}
    if not names:
        raise ParameterError(
            "no parameters cell has run in this kernel",
            fix='run the notebook from the top; its parameters cell starts with "# parameters"',
        )
    return model.from_values({name: namespace[name] for name in names if name in namespace})


def _looks_like_parameter(name: str, value: object) -> bool:
    literal = isinstance(value, str | int | float | bool | list)
    return literal and not name.startswith("_") and name != "In"


def assigned_names(source: str) -> set[str]:
    """Names that a cell's assignments bind. Pure."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def table(facts: Mapping[str, Any], columns: Sequence[str] = ("", "")) -> "pandas.DataFrame":
    """A two-column table of facts, without an index column's numbers in the way."""
    import pandas

    pandas.set_option("display.max_colwidth", 200)
    return pandas.DataFrame(
        {columns[1]: [str(value) for value in facts.values()]}, index=list(facts)
    ).rename_axis(columns[0])


class Scrolling:
    """A long table in a box of its own: a notebook stays readable around it."""

    def __init__(self, frame: "pandas.DataFrame", height_em: int, digits: int) -> None:
        self.frame, self._height, self._digits = frame, height_em, digits

    def _repr_html_(self) -> str:
        lines = self.frame.to_html(
            index=False, border=0, justify="left", float_format=f"%.{self._digits}g", na_rep=""
        )
        return f'<div style="max-height:{self._height}em;overflow:auto">{lines}</div>'

    def __repr__(self) -> str:
        return f"a table of {len(self.frame)} lines"


def long_table(
    frame: "pandas.DataFrame", empty: str = "Nothing.", height_em: int = 24, digits: int = 3
) -> Any:
    """A table that scrolls; where there is no line, the words ``empty``."""
    from IPython.display import Markdown

    return Markdown(empty) if frame.empty else Scrolling(frame, height_em, digits)


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


def progress_line() -> Callable[[str], None]:
    """A line of text that replaces itself in the notebook; one that begins with "ready" stays."""
    live = LiveOutput()

    def show(text: str) -> None:
        from IPython.display import Pretty

        live.show(Pretty(text), is_last=text.startswith("ready"))

    return show


def progress_bar(words: str) -> Callable[[int, int], None]:
    """A bar for calls of (done, total); when all is done only words stay."""
    live, last = LiveOutput(), 0.0

    def show(done: int, total: int) -> None:
        from IPython.display import HTML, Pretty

        nonlocal last
        if done == total:
            live.show(Pretty(f"{words}: {total}"), is_last=True)
        elif time.monotonic() - last > 0.5:
            last = time.monotonic()
            bar = f'<progress value="{done}" max="{total}" style="width:20em"></progress>'
            live.show(HTML(f"{bar} {words}: {done} of {total}"), is_last=False)

    return show


def save_figure(figure: "Figure", numbers: "pandas.DataFrame", run_path: Path, name: str) -> Any:
    """Write ``figures/{name}.png`` and the numbers behind it as ``{name}.csv``; shows the PNG."""
    from IPython.display import Image

    folder = run_path / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    figure.savefig(path, dpi=150, bbox_inches="tight")
    numbers.to_csv(path.with_suffix(".csv"), index=False)
    return Image(filename=path, width=750)


def save_metrics(run_path: Path, **numbers: Any) -> Path:
    """Merge numbers into ``metrics.json``."""
    path = run_path / "metrics.json"
    run_path.mkdir(parents=True, exist_ok=True)
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, **numbers}, indent=1, sort_keys=True))
    return path


def report(executed: str | Path) -> Path:
    """One HTML file without code of an executed notebook, and the index of its directory.

    The same as ``python -m hslib report``; see :mod:`hslib.notebook.report.page`.

    Raises:
        ReportError: not a notebook, or one that was never run.
    """
    from hslib.notebook.report.page import write_reports

    return write_reports(Path(executed))[0].path
