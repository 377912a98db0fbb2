"""Tables as a notebook shows them.

Styles are inline: JupyterLab drops a ``<style>`` from a notebook that is not trusted, as one that
comes from git is. Colours are the theme's.
"""

import html
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

_CELL = "text-align:left;vertical-align:top;white-space:normal;overflow-wrap:break-word"
_NUMBER = "text-align:right;vertical-align:top;white-space:nowrap"


class Table:
    """A frame as HTML: text to the left, numbers to the right, no index."""

    def __init__(self, frame: "pandas.DataFrame", plain: str, scrolls: bool = False) -> None:
        self.frame, self._plain, self._scrolls = frame, plain, scrolls

    def _repr_html_(self) -> str:
        head = "".join(_cell("th", name, _CELL) for name in self.frame.columns)
        lines = "".join(
            f"<tr>{''.join(map(_value_cell, line))}</tr>\n"
            for line in self.frame.itertuples(index=False)
        )
        top = f"<thead><tr>{head}</tr></thead>" if any(self.frame.columns) else ""
        text = f"<table>{top}\n<tbody>\n{lines}</tbody></table>"
        return f'<div style="max-height:24em;overflow:auto">{text}</div>' if self._scrolls else text

    def __repr__(self) -> str:
        return self._plain


def _value_cell(value: Any) -> str:
    if isinstance(value, float):
        return _cell("td", "" if math.isnan(value) else f"{value:.3g}", _NUMBER)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return _cell("td", value, _NUMBER if is_number else _CELL)


def _cell(tag: str, text: object, style: str) -> str:
    return f'<{tag} style="{style}">{html.escape(str(text))}</{tag}>'


def table(facts: Mapping[str, Any], columns: Sequence[str] = ("", "")) -> Table:
    """Two columns: names and what is to be said of each."""
    import pandas

    told = {name: str(value) for name, value in facts.items()}
    width = max(map(len, told), default=0)
    plain = "\n".join(f"{name.ljust(width)}  {text}" for name, text in told.items())
    return Table(pandas.DataFrame(list(told.items()), columns=list(columns)), plain)


def long_table(frame: "pandas.DataFrame", empty: str = "Nothing.") -> Any:
    """A table that scrolls; where there is no line, the words ``empty``."""
    from IPython.display import Markdown

    return Markdown(empty) if frame.empty else Table(frame, f"a table of {len(frame)} lines", True)


def wide(frame: "pandas.DataFrame") -> Table:
    """A table whose long texts break into lines."""
    plain = frame.reset_index() if frame.index.name else frame
    return Table(plain, f"a table of {len(frame)} lines")


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
    short = float(f"{value:.{digits}g}")  # 99.7 may come to 100
    if abs(short) >= 10**digits:
        return f"{short:,.0f}"
    return f"{value:.{digits}g}"
