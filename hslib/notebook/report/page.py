"""An executed notebook as one HTML file without code: verdict first, no secrets.

A notebook that failed or was cut off becomes a report too, with the error and its cell. What
:mod:`hslib.notebook.report.scrub` recognises is taken out before anything is rendered.
"""

import json
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hslib.errors import HslibError
from hslib.files import write_atomically
from hslib.job import RunRecord, installed_versions, read_record, watch
from hslib.notebook.report.notebook_file import (
    State,
    ended_at,
    headings,
    parameters_of,
    state_of,
    title_of,
    verdict_of,
    without_code,
)
from hslib.notebook.report.scrub import Scrubber, hosts_in_urls
from hslib.notebook.verdict import MARK, words_html

TEMPLATES = Path(__file__).parent / "templates"
_PACKAGES = ("hslib", "sglang", "torch", "transformers", "numpy", "pandas", "matplotlib")
STATE_WORDS: dict[str, str] = {
    "ok": "Ran to the end",
    "running": "Running",
    "interrupted": "Interrupted",
    "failed": "FAILED",
    "unfinished": "Did not run to the end",
}


class ReportError(HslibError):
    """A report can't be made of this."""


@dataclass(frozen=True)
class Report:
    """A written report. ``verdict``: the notebook's own, or its error; ``date``: its end."""

    path: Path
    title: str
    state: State
    verdict: str
    date: str = ""

    @property
    def is_good(self) -> bool:
        return self.state == "ok"

    @property
    def number(self) -> str:
        """The notebook's, "03" of "03 · Are the states there?"; "" without one."""
        found = re.match(r"(\d\d) · ", self.title)
        return found[1] if found else ""


def write_report(
    notebook: Path, target: Path | None = None, scrubber: Scrubber | None = None
) -> Report:
    """Render a notebook to ``target`` (default: its name with ``.html``, beside it).

    Raises:
        ReportError: not a notebook, or one that was never run.
    """
    nb = _read(notebook)
    words = json.dumps(nb)
    known = (scrubber or Scrubber.of_this_machine()).knowing(hosts_in_urls(words))
    date = ended_at(nb) or time.strftime("%Y-%m-%d %H:%M", time.gmtime(notebook.stat().st_mtime))
    nb = _scrubbed(nb, known)
    path = target or notebook.with_suffix(".html")
    report = Report(path, title_of(nb) or notebook.stem, state_of(nb)[0], verdict_of(nb), date)
    # a notebook does not know whether its kernel lives; the job of 03 tells of itself
    is_jobs = report.state == "unfinished" and report.number == "03"
    if is_jobs and watch.is_busy(notebook.parent, time.time()):
        words = report.verdict.replace("Only ", "At work: ")
        report = replace(report, state="running", verdict=words)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = read_record(notebook.parent)
    write_atomically(path, _render(nb, report, record).encode())
    return report


def _read(notebook: Path) -> Any:
    import nbformat

    try:
        nb = nbformat.read(notebook, as_version=4)
    except FileNotFoundError:
        raise ReportError("there is no such notebook", path=str(notebook)) from None
    except (nbformat.reader.NotJSONError, nbformat.ValidationError) as error:
        raise ReportError(f"not a notebook: {error}"[:300], path=str(notebook)) from error
    if not any(cell.get("execution_count") for cell in nb.cells if cell.cell_type == "code"):
        raise ReportError(
            "the notebook was never run: there is nothing to report",
            path=str(notebook),
            fix="run it by papermill, or in JupyterLab and save it",
        )
    return nb


def _scrubbed(nb: Any, scrubber: Scrubber) -> Any:
    """The notebook with every text cleaned; of metadata only tags are kept."""
    import nbformat

    cells = []
    for cell in nb.cells:
        kept = {"tags": cell.metadata.get("tags", [])}
        cell = nbformat.from_dict({**cell, "metadata": kept})
        cell.source = scrubber.clean(cell.source)
        if cell.cell_type == "code":
            cell.outputs = [_scrubbed_output(output, scrubber) for output in cell.outputs]
        cells.append(cell)
    language = nb.metadata.get("language_info", {}).get("version", "")
    metadata = {
        "language_info": {"name": "python", "version": language},
        "papermill": {"end_time": nb.metadata.get("papermill", {}).get("end_time")},
    }
    return nbformat.from_dict({**nb, "cells": cells, "metadata": metadata})


def _scrubbed_output(output: Any, scrubber: Scrubber) -> Any:
    import nbformat

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return scrubber.clean(_plain(value))
        return [clean(part) for part in value] if isinstance(value, list) else value

    cleaned = dict(output)
    for name in ("text", "ename", "evalue"):
        if name in cleaned:
            cleaned[name] = clean(cleaned[name])
    if "traceback" in cleaned:  # joined: a secret may span two lines
        cleaned["traceback"] = clean("\n".join(cleaned["traceback"])).split("\n")
    if "data" in cleaned:
        cleaned["data"] = {
            kind: value if kind.startswith("image/") and "svg" not in kind else clean(value)
            for kind, value in cleaned["data"].items()
            if kind in _SHOWN
        }
        if "text/html" in cleaned["data"]:
            cleaned["data"]["text/html"] = _SCRIPT.sub("", cleaned["data"]["text/html"])
        cleaned["metadata"] = {k: v for k, v in output.metadata.items() if k == MARK}
    return nbformat.from_dict(cleaned)


_SHOWN = {"text/html", "text/markdown", "text/latex", "text/plain"}  # what can be scrubbed
_SHOWN |= {"image/png", "image/jpeg", "image/svg+xml"}
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SCRIPT = re.compile(r"(?is)<script\b.*?</script\s*>|<link\b[^>]*>|<iframe\b.*?</iframe\s*>")


def _plain(text: str) -> str:
    """Without terminal colours, which would stand between a secret and its name."""
    return _ANSI.sub("", text)


def _versions(nb: Any, run: RunRecord | None) -> dict[str, str]:
    """Those of the run's job; without one the packages' where the report is made."""
    if run is not None:
        return run.versions
    python = nb.metadata.language_info.version or "unknown"
    return {"python": python, **installed_versions(_PACKAGES)}


def read_style() -> str:
    """The style sheet of reports and their index."""
    return (TEMPLATES / "report/style.css").read_text()


def _render(nb: Any, report: Report, run: RunRecord | None) -> str:
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(
        template_name="report",
        extra_template_basedirs=[str(TEMPLATES)],
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        anchor_link_text="",  # headings keep their ids, for the contents list
        embed_images=True,
        filters={"words": words_html},
    )
    around = {  # what the template shows around the cells
        "report": report,
        "words": STATE_WORDS[report.state],
        "failed_cell": state_of(nb)[1],
        "headings": headings(nb),
        "parameters": parameters_of(nb),
        "versions": _versions(nb, run),
        "versions_of": "the run's job" if run else "the environment in which this report was made",
        "style": read_style(),
    }
    page, _ = exporter.from_notebook_node(without_code(nb), resources={"hslib": around})
    return str(page)
