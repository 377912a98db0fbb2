"""A job's progress in a notebook: what stays in the file, and a widget that ends with the job."""

import threading
import time
from pathlib import Path

import pytest
from make.progress import progress
from make.waits import wait_until

from hslib import notebook
from hslib.job import ProgressState
from hslib.notebook import job_view, live
from hslib.server import run_lock


def test_the_view_in_a_notebook_is_html_and_escapes_what_it_shows() -> None:
    text = job_view.job_html(progress(message="<b>&"), 1001.0)
    assert '<progress value="40" max="100"' in text
    assert "40%" in text
    assert "&lt;b&gt;&amp;" in text
    assert job_view.job_html(None, 0.0) == "<p>No job has run here yet.</p>"


def tell(folder: Path, state: ProgressState) -> None:
    """As a job does: a reader never sees a part of the file."""
    (folder / ".new").write_text(state.model_dump_json())
    (folder / ".new").replace(folder / "progress.json")


def test_a_notebook_run_headless_gets_no_widget(tmp_path: Path) -> None:
    assert type(notebook.show_job(tmp_path)).__name__ == "HTML"
    (tmp_path / "progress.json").write_text(progress(state="finished").model_dump_json())
    assert "finished" in notebook.show_job(tmp_path).data


def test_while_a_job_is_at_work_the_view_is_a_widget_that_follows_it(tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text(progress(updated_at=time.time()).model_dump_json())
    widget = notebook.show_job(tmp_path, refresh_s=0.01)
    assert type(widget).__name__ == "HTML" and hasattr(widget, "value")
    followers = [t for t in threading.enumerate() if t.name == "hslib-view"]
    tell(tmp_path, progress(state="finished", ok=90, updated_at=time.time()))
    for follower in followers:
        follower.join(10)
        assert not follower.is_alive(), "it ends with the job"
    assert "90 extracted" in widget.value


def test_a_job_that_starts_its_server_is_followed_from_there(tmp_path: Path) -> None:
    lock = run_lock(tmp_path)
    widget = notebook.show_job(tmp_path, refresh_s=0.01)
    assert widget.value.startswith("<p>A job is starting its server since ")
    tell(tmp_path, progress(updated_at=time.time()))
    wait_until("the job's own word", lambda: "40%" in widget.value)
    tell(tmp_path, progress(state="finished", ok=90, updated_at=time.time()))
    lock.release()
    wait_until("its end", lambda: "90 extracted" in widget.value)


def test_a_bar_of_a_job_leaves_counts_and_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        live.LiveOutput,
        "show",
        lambda _self, content, is_last: shown.append((content.data, is_last)),
    )
    show = notebook.job_bar()
    show(progress())
    show(progress(state="finished", ok=90))
    (running, early), (finished, last) = shown
    assert "0.3 samples/s, 5.0 MB/s" in running
    assert not early
    assert finished.endswith(
        "<span>finished: 90 extracted, 5 already done, 3 failed, 2 rejected of 100</span>"
    )
    assert last
