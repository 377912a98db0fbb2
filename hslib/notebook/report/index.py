"""The reports of a run, and the page that lists them."""

import html
from collections.abc import Iterable
from pathlib import Path

from hslib.files import write_atomically
from hslib.notebook.report.page import (
    STATE_WORDS,
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
    from bs4 import BeautifulSoup

    rows = []
    for file in sorted(folder.glob("*.html")):
        page = BeautifulSoup(file.read_text(encoding="utf-8"), "html.parser")
        found = {
            name: str(tag["content"])
            for name in ("hslib-state", "hslib-verdict")
            if (tag := page.find("meta", {"name": name}))
        }
        if "hslib-state" in found:
            title = page.title.get_text() if page.title else file.stem
            rows.append(_index_row(file.name, title, found["hslib-state"], found["hslib-verdict"]))
    path = folder / "index.html"
    write_atomically(path, _index_page(rows).encode())
    return path


def _index_row(name: str, title: str, state: str, verdict: str) -> str:
    words = STATE_WORDS.get(state, state)
    return (
        f'<tr><th><a class="report" href="{html.escape(name)}">{html.escape(title)}</a></th>'
        f'<td class="{html.escape(state)}">{words}</td>'
        f'<td class="words">{html.escape(verdict)}</td></tr>'
    )


def _index_page(rows: Iterable[str]) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Reports of this run</title>\n<style>\n{read_style()}</style>\n</head>\n<body>\n"
        '<input type="checkbox" id="other-theme">'
        '<label for="other-theme" title="light or dark">◐</label>\n'
        '<div class="page" style="grid-template-columns: minmax(0, 1fr)"><main>\n'
        '<h1>Reports of this run</h1>\n<table class="facts">\n'
        "<thead><tr><th>report</th><th>state</th><th>verdict</th></tr></thead>\n<tbody>\n"
        + "\n".join(rows)
        + "\n</tbody>\n</table>\n</main></div>\n</body>\n</html>\n"
    )
