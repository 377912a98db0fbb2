"""A job's progress in a notebook: a bar for the job of this cell, a view of another process's."""

import html
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hslib.job import ProgressState, at_work, read_progress, time_words, watch
from hslib.notebook.live import LiveOutput, bar_html

_REFRESH_S = 1.0


def job_bar() -> Callable[[ProgressState], None]:
    """What ``extract.run`` takes as ``show``; what stays in the notebook has no times."""
    live = LiveOutput()

    def show(state: ProgressState) -> None:
        from IPython.display import HTML

        rate = ""
        if state.state == "running":
            rate = f", {state.samples_per_s:.1f} samples/s, {state.mb_per_s:.1f} MB/s"
            rate += f", {at_work(state)}" if state.replicas else ""
            rate += f", {time_words(state)}"
        words = (
            f"{state.state}: {state.ok} extracted, {state.already_done} already done, "
            f"{state.failed} failed, {state.rejected} rejected of {state.asked}{rate}"
        )
        done = state.asked - state.unfinished_rows
        live.show(HTML(bar_html(done, state.asked, words)), is_last=state.state != "running")

    return show


def show_job(run_path: Path, refresh_s: float = _REFRESH_S) -> Any:
    """How the run's job stands: a widget that follows it while another process works on it.

    Without such a job plain HTML, so that a notebook run headless stores no widget.
    """
    from IPython.display import HTML

    if not watch.is_busy(run_path, time.time()):
        return HTML(_job_now(run_path))
    import ipywidgets

    widget = ipywidgets.HTML(_job_now(run_path))
    threading.Thread(
        target=_follow, args=(run_path, widget, refresh_s), name="hslib-view", daemon=True
    ).start()
    return widget


def rows_asked(run_path: Path) -> int:
    """Rows that the run's job was to store, without rejected ones; 0 when no job ran here."""
    state = read_progress(run_path)
    return state.asked - state.rejected if state else 0


def job_html(state: ProgressState | None, now: float, starting_since: float | None = None) -> str:
    """A bar, and below it the facts that ``python -m hslib status`` prints. Pure."""
    if starting_since is not None:
        return f"<p>A job is {watch.starting_words(starting_since, now)}.</p>"
    if state is None:
        return "<p>No job has run here yet.</p>"
    done, asked = state.asked - state.unfinished_rows, max(state.asked, 1)
    lines = "".join(
        f'<tr><th style="text-align:left">{name}</th>'
        f'<td style="text-align:left">{html.escape(words)}</td></tr>'
        for name, words in watch.facts(state, now)
    )
    return f"<p>{bar_html(done, asked, f'{done / asked:.0%}')}</p><table>{lines}</table>"


def _follow(run_path: Path, widget: Any, refresh_s: float) -> None:
    """Renew the widget until the job ends or dies."""
    is_busy = True
    while is_busy:
        is_busy = watch.is_busy(run_path, time.time())  # asked first: what is shown then is the end
        widget.value = _job_now(run_path)
        time.sleep(refresh_s)


def _job_now(run_path: Path) -> str:
    state, now = read_progress(run_path), time.time()
    since = None if watch.is_at_work(state, now) else watch.starting_since(run_path, state)
    return job_html(state, now, since)
