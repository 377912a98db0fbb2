"""A menu of rows above one row's coloured tokens."""

from collections.abc import Sequence
from typing import Any

from hslib.diagnosis.view import is_explored
from hslib.rows import Chat, Row, row_html

_LENGTH = 200  # tokens of a row that shows something and can still be taken in


def row_picker(chat: Chat, rows: Sequence[Row]) -> Any:
    """A menu for a person, a still picture of one row of middling length for a headless run."""
    from IPython.display import HTML

    if not rows:
        return HTML("<p>No row was made.</p>")
    shown = min(range(len(rows)), key=lambda n: abs(len(rows[n].input_ids) - _LENGTH))
    if not is_explored():
        return HTML(row_html(chat, rows[shown]))
    import ipywidgets

    names = [(f"{row.id} ({len(row.input_ids):,} tokens)", n) for n, row in enumerate(rows)]
    menu = ipywidgets.Dropdown(options=names, value=shown, description="row")
    picture = ipywidgets.HTML(row_html(chat, rows[shown]))
    menu.observe(
        lambda change: setattr(picture, "value", row_html(chat, rows[change["new"]])), "value"
    )
    return ipywidgets.VBox([menu, picture])
