"""One row's two tokenisations side by side (HTML), and a widget to browse the rows."""

import html
import os
from collections.abc import Sequence
from typing import Any

from hslib.diagnosis.rows import row_name
from hslib.diagnosis.tokens.causes import Comparison
from hslib.diagnosis.tokens.differences import Side, windows
from hslib.diagnosis.tokens.recipes import Compared
from hslib.diagnosis.tokens.tokenizers import readable

_KEPT = 6  # equal tokens shown on each side of a difference
_MAX_RUN = 400  # tokens shown of one run
# inline, for JupyterLab drops a <style> from a notebook that is not trusted
_BOX = "max-height:460px;overflow:auto;border:1px solid #797979"
_BOX += ";font-family:monospace;font-size:13px;line-height:1.9"
_TABLE = "width:100%;border-collapse:collapse;table-layout:fixed"
_CELL = "text-align:left;vertical-align:top;padding:2px 8px;border-bottom:1px solid #797979"
_CELL += ";overflow-wrap:break-word;white-space:normal"
# what has a ground has an ink: the page behind may be light or dark
_HEAD = f"{_CELL};position:sticky;top:0;color:#111;background:#f3f3f3"
_NARROW = ";width:5.5em"
_TOKEN = "padding:1px 2px;margin:0 1px;border-radius:2px;color:#111"
_EQUAL = ";background:#f1f1f1"
_LEFT = ";background:#ffd9b8;border-bottom:2px solid #D55E00"
_RIGHT = ";background:#cfe6f7;border-bottom:2px solid #0072B2"
_SPECIAL = ";border:1px solid #555;font-weight:bold"
_NOTE = "color:#797979;font-style:italic"


def is_explored() -> bool:
    """Whether a person has this notebook open.

    JupyterLab and VS Code name themselves in the environment; papermill and nbconvert do not.
    """
    return "JPY_SESSION_NAME" in os.environ or "VSCODE_PID" in os.environ


def diff_html(comparison: Comparison, names: tuple[str, str]) -> str:
    """Expected left, got right; differing tokens are coloured, special ones framed."""
    a, b = comparison.pair.expected, comparison.pair.got
    rows, a_at, b_at = [], 0, 0
    for window in [*windows(a.ids, b.ids), None]:
        a_next, b_next = (
            (len(a.ids), len(b.ids)) if window is None else (window.a_start, window.b_start)
        )
        rows += _equal_rows(a, b, (a_at, a_next), (b_at, b_next), window is None)
        if window is not None:
            left = _tokens(a, window.a_start, window.a_stop, _LEFT)
            right = _tokens(b, window.b_start, window.b_stop, _RIGHT)
            rows.append(_row(window.a_start, left, right))
            a_at, b_at = window.a_stop, window.b_stop
    head = "".join(
        f'<th style="{_HEAD}{"" if number else _NARROW}">{html.escape(text)}</th>'
        for number, text in enumerate(
            (
                "position",
                f"expected: {names[0]}, {len(a.ids)} tokens",
                f"got: {names[1]}, {len(b.ids)} tokens",
            )
        )
    )
    return (
        f"<p><b>{html.escape(_caption(comparison))}</b></p>"
        f'<div style="{_BOX}"><table style="{_TABLE}"><tr>{head}</tr>{"".join(rows)}</table></div>'
    )


def _caption(comparison: Comparison) -> str:
    causes = "; ".join(f"{r.code}: {r.evidence}" for r in comparison.reasons) or "the ids are equal"
    return f"{row_name(comparison.index, comparison.line)}: {causes}"


def _equal_rows(
    a: Side, b: Side, left: tuple[int, int], right: tuple[int, int], is_last: bool
) -> list[str]:
    """A run of equal tokens: its ends as tokens, its middle as a count."""
    low, high = left
    if low == high:
        return []
    if high - low <= 3 * _KEPT:
        return [_row(low, _tokens(a, low, high), _tokens(b, *right))]
    rows = []
    head = 0 if low == 0 else _KEPT
    tail = 0 if is_last else _KEPT
    if head:
        rows.append(_row(low, _tokens(a, low, low + head), _tokens(b, right[0], right[0] + head)))
    note = _note(f"{high - low - head - tail} equal tokens")
    rows.append(_row(low + head, note, note))
    if tail:
        rows.append(
            _row(high - tail, _tokens(a, high - tail, high), _tokens(b, right[1] - tail, right[1]))
        )
    return rows


def _row(position: int, left: str, right: str) -> str:
    first = f'<td style="{_CELL}{_NARROW}">{position}</td>'
    return f'<tr>{first}<td style="{_CELL}">{left}</td><td style="{_CELL}">{right}</td></tr>'


def _note(words: str) -> str:
    return f'<span style="{_NOTE}">{words}</span>'


def _tokens(side: Side, start: int, stop: int, mark: str = _EQUAL) -> str:
    ids = side.ids[start : min(stop, start + _MAX_RUN)]
    special = side.vocabulary.special_ids
    parts = [
        f'<span style="{_TOKEN}{mark}{_SPECIAL * (part[0] in special)}" '
        f'title="{" ".join(map(str, part))}">{html.escape(visible(text))}</span>'
        for part, text in readable(side.vocabulary, ids)
    ]
    if stop - start > _MAX_RUN:
        parts.append(_note(f"and {stop - start - _MAX_RUN} more"))
    return " ".join(parts) or _note("nothing")


def visible(text: str) -> str:
    """A text with its white space shown."""
    for plain, shown in ((" ", "·"), ("\r", "␍"), ("\n", "↵"), ("\t", "⇥")):
        text = text.replace(plain, shown)
    return text


def still(compared: Sequence[Compared]) -> str:
    """The worst row of the first pair that differs, as HTML; a sentence when all agree."""
    if not any(pair.comparisons for pair in compared):
        return "<p>No row was compared.</p>"
    pair = next((pair for pair in compared if pair.differing), None)
    worst = pair.worst() if pair else None
    if pair is None or worst is None:
        return "<p>All tokenisations have equal ids in all rows.</p>"
    return diff_html(worst, (pair.expected.name, pair.got.name))


def explorer(compared: Sequence[Compared]) -> Any:
    """Menus of pair, cause and row for a person, a still picture for a headless run."""
    from IPython.display import HTML

    if not is_explored() or not any(pair.comparisons for pair in compared):
        return HTML(still(compared))
    return Explorer(compared).widget


class Explorer:
    """Menus of pair, cause and row above the diff; each menu narrows the next."""

    def __init__(self, compared: Sequence[Compared]) -> None:
        import ipywidgets

        self._compared = sorted(compared, key=lambda pair: not pair.differing)
        style = {"description_width": "4em"}
        wide = ipywidgets.Layout(width="98%")
        options = [(f"{p.name} ({len(p.differing)} differ)", n)
                   for n, p in enumerate(self._compared)]  # fmt: skip
        self.pair = ipywidgets.Dropdown(
            options=options, description="pair", style=style, layout=wide
        )
        self.cause = ipywidgets.Dropdown(description="cause", style=style)
        self.row = ipywidgets.Dropdown(description="row", style=style)
        self.picture = ipywidgets.HTML()
        menus = ipywidgets.HBox([self.cause, self.row])
        self.widget = ipywidgets.VBox([self.pair, menus, self.picture])
        self.pair.observe(self._on_pair, "value")
        self.cause.observe(self._on_cause, "value")
        self.row.observe(self._on_row, "value")
        self._on_pair()

    def _chosen(self) -> Compared:
        return self._compared[int(self.pair.value)]

    def _on_pair(self, _change: object = None) -> None:
        pair = self._chosen()
        causes = [(f"{code} ({len(rows)})", code) for code, rows in pair.by_cause.items()]
        any_cause = [("any", "")] if causes else []  # else the equal rows are what there is to see
        self.cause.options = [*any_cause, *causes, ("equal ids", "=")]
        self._on_cause()

    def _on_cause(self, _change: object = None) -> None:
        pair, code = self._chosen(), self.cause.value
        if code == "=":
            rows = [c for c in pair.comparisons if c.agrees]
        else:
            rows = pair.by_cause.get(code, []) if code else list(pair.differing)
        self.row.options = [(row_name(c.index, c.line), c.index) for c in rows]
        worst = pair.worst(code) if code != "=" else next(iter(rows), None)
        if worst is not None:  # a menu that was empty selects nothing by itself
            self.row.value = worst.index
        self._on_row()

    def _on_row(self, _change: object = None) -> None:
        pair = self._chosen()
        found = next((c for c in pair.comparisons if c.index == self.row.value), None)
        names = (pair.expected.name, pair.got.name)
        self.picture.value = diff_html(found, names) if found else "<p>No row was compared.</p>"
