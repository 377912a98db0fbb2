"""One place in a notebook's output that changes while a cell runs."""

from typing import Any


class LiveOutput:
    """Updates one output in place; the last content becomes an output of its own.

    What changes is gone from the notebook in the end, so that two executions of it can be
    compared: nbval 0.11 knows nothing of updates and keeps an output as it first was.
    """

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, content: Any, is_last: bool) -> None:
        """Show ``content`` (anything that IPython displays) in place of what was there."""
        from IPython.display import Pretty, display

        if self._handle is None:
            self._handle = display(Pretty(""), display_id=True)
        if is_last:
            self._handle.update(Pretty(""))
            display(content)
        else:
            self._handle.update(content)
