"""Output that changes in place while a cell runs: a line of text, or a bar."""

import html
import time
from collections.abc import Callable
from typing import Any

_REFRESH_S = 0.5


class LiveOutput:
    """Updates one output in place; the last content becomes an output of its own.

    The first output is empty in the end, so that two executions can be compared: nbval 0.11
    ignores updates and keeps an output as it first was.
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


def bar_html(done: int, total: int, words: str) -> str:
    """A bar with words beside it."""
    return (
        f'<progress value="{done}" max="{max(total, 1)}" style="width:20em"></progress> '
        f"<span>{html.escape(words)}</span>"
    )


def progress_line() -> Callable[[str], None]:
    """A line of text that replaces itself; one that begins with "ready" stays."""
    live = LiveOutput()

    def show(text: str) -> None:
        from IPython.display import Pretty

        live.show(Pretty(text), is_last=text.startswith("ready"))

    return show


def progress_bar(words: str) -> Callable[[int, int], None]:
    """A bar for calls of (done, total); when all is done only the words stay."""
    live, last = LiveOutput(), 0.0

    def show(done: int, total: int) -> None:
        from IPython.display import HTML, Pretty

        nonlocal last
        if done == total:
            live.show(Pretty(f"{words}: {total}"), is_last=True)
        elif time.monotonic() - last > _REFRESH_S:
            last = time.monotonic()
            live.show(HTML(bar_html(done, total, f"{words}: {done} of {total}")), is_last=False)

    return show
