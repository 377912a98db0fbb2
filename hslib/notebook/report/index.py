"""The reports of a run, and the page that lists them."""

from pathlib import Path
from typing import cast

from hslib.files import write_atomically
from hslib.notebook.report.notebook_file import State
from hslib.notebook.report.page import (
    STATE_WORDS,
    TEMPLATES,
    Report,
    ReportError,
    read_style,
    write_report,
)


def write_reports(path: Path) -> list[Report]:
    """Reports of one notebook, or of every notebook in a run's directory, and their index.

    Raises:
        ReportError: there is no executed notebook.
    """
    if path.is_dir():
        notebooks = sorted(path.glob("*.ipynb"))
        if not notebooks:
            raise ReportError(
                "no notebook lies here",
                path=str(path),
                fix="give papermill an output in the run's directory, such as runs/demo/job.ipynb",
            )
    else:
        notebooks = [path]
    reports = [write_report(notebook) for notebook in notebooks]
    write_index(notebooks[0].parent)
    return reports


def write_index(folder: Path) -> Path:
    """``index.html`` of all reports in a directory; state and verdict are read from each."""
    import jinja2
    from bs4 import BeautifulSoup

    reports = []
    for file in sorted(folder.glob("*.html")):
        page = BeautifulSoup(file.read_text(encoding="utf-8"), "html.parser")
        metas = {str(tag.get("name")): str(tag.get("content")) for tag in page.find_all("meta")}
        if "hslib-state" in metas:
            title = page.title.get_text() if page.title else file.stem
            state, verdict = cast(State, metas["hslib-state"]), metas["hslib-verdict"]
            reports.append(Report(file, title, state, verdict))
    template = jinja2.Template((TEMPLATES / "report/run.html.j2").read_text())
    text = template.render(reports=reports, words=STATE_WORDS, style=read_style())
    path = folder / "index.html"
    write_atomically(path, text.encode())
    return path
