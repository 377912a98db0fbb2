"""The reports of a run, and the page on top of them."""

from dataclasses import replace
from pathlib import Path
from typing import cast

from hslib.files import write_atomically
from hslib.job import find_runs
from hslib.notebook.report.notebook_file import State
from hslib.notebook.report.page import (
    STATE_WORDS,
    TEMPLATES,
    Report,
    ReportError,
    read_style,
    write_report,
)
from hslib.notebook.report.run_facts import Fact
from hslib.notebook.report.run_page import RunPage, read_run_page
from hslib.notebook.report.scrub import Scrubber, hosts_in_urls
from hslib.notebook.verdict import words_html

_FROM_BEST: tuple[State, ...] = ("ok", "running", "unfinished", "interrupted", "failed")


def write_reports(path: Path) -> list[Report]:
    """Reports of one notebook, or of every notebook in a run's directory, and their page.

    The run may be one of several shards, each with a folder of its own in the directory.

    Raises:
        ReportError: there is no executed notebook, and no job ran.
    """
    if not path.exists():
        raise ReportError("there is no such file or directory", path=str(path))
    if not path.is_dir():
        report = write_report(path)
        write_index(path.parent)
        return [report]
    folders = _folders(path)
    notebooks = [notebook for folder in folders for notebook in sorted(folder.glob("*.ipynb"))]
    if not notebooks and not find_runs(path):
        raise ReportError(
            "there is no notebook here, and no job ran here",
            path=str(path),
            fix=f"run a notebook with this run_dir: python -m hslib run 03 -p run_dir {path}",
        )
    reports = [_report_or_why(notebook) for notebook in notebooks]
    for folder in folders:
        write_index(folder)
    return reports


def _folders(path: Path) -> list[Path]:
    """The folder itself, and those of shards: also of one whose job did not begin."""
    runs = find_runs(path)
    if runs in ([], [path]):
        return [path]
    return [path, *sorted({*runs, *(notebook.parent for notebook in path.glob("*/*.ipynb"))})]


def _report_or_why(notebook: Path) -> Report:
    """A notebook that never ran keeps no other from its report."""
    try:
        return write_report(notebook)
    except ReportError as error:
        return Report(notebook, notebook.stem, "unfinished", error.message)


def write_index(folder: Path, scrubber: Scrubber | None = None) -> Path:
    """``index.html``: what the run gave, and the reports of its notebooks in the order of the flow.

    State, verdict and date are read from each report. One whose notebook is gone is left out.
    """
    import jinja2

    reports = read_reports(folder)
    page = read_run_page(folder, _states(reports))
    known = (scrubber or Scrubber.of_this_machine()).knowing(hosts_in_urls(str(page)))
    environment = jinja2.Environment()
    environment.filters["words"] = words_html
    template = environment.from_string((TEMPLATES / "report/run.html.j2").read_text())
    text = template.render(
        name=folder.absolute().name,
        run=page and _scrubbed(page, known),
        reports=reports,
        words=STATE_WORDS,
        style=read_style(),
    )
    path = folder / "index.html"
    write_atomically(path, text.encode())
    return path


def read_reports(folder: Path) -> list[Report]:
    """The reports in a folder and in its shards' folders, by title and then by date."""
    from bs4 import BeautifulSoup

    reports = []
    for file in (file for one in _folders(folder) for file in one.glob("*.html")):
        page = BeautifulSoup(file.read_text(encoding="utf-8"), "html.parser")
        metas = {str(tag.get("name")): str(tag.get("content")) for tag in page.find_all("meta")}
        if "hslib-state" not in metas or not file.with_suffix(".ipynb").exists():
            continue
        title = page.title.get_text() if page.title else file.stem
        state, verdict = cast(State, metas["hslib-state"]), metas["hslib-verdict"]
        reports.append(
            Report(file.relative_to(folder), title, state, verdict, metas.get("hslib-date", ""))
        )
    return sorted(reports, key=lambda report: (report.title, report.date, str(report.path)))


def _states(reports: list[Report]) -> dict[str, State]:
    """How the notebooks ran, by number: of each folder the latest counts, of these the worst."""
    latest = {(report.number, report.path.parent): report.state for report in reports}
    found: dict[str, State] = {}
    for (number, _folder), state in latest.items():
        if number:
            found[number] = max(found.get(number, "ok"), state, key=_FROM_BEST.index)
    return found


def _scrubbed(page: RunPage, scrubber: Scrubber) -> RunPage:
    """Without hosts, homes and secrets, as the notebooks' reports are."""
    return replace(
        page,
        verdict=scrubber.clean(page.verdict),
        facts=tuple(Fact(f.name, scrubber.clean(f.text), f.tone) for f in page.facts),
        next_command=scrubber.clean(page.next_command),
        parts=tuple(tuple(scrubber.clean(cell) for cell in line) for line in page.parts),
    )
