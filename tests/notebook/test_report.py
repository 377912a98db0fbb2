"""Reports: what a notebook shows goes in, code and what must not leave the house stay out."""

import base64
import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from hslib.notebook.report import ReportError, write_report, write_reports
from hslib.notebook.report.index import write_index
from hslib.notebook.report.scrub import Scrubber
from hslib.notebook.verdict import MARK
from hslib.terminal import main

COMMITTED = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
PIXEL = base64.b64encode(b"\x89PNG not really").decode()


def code(source: str, *outputs: Any, count: int | None = 1, tags: tuple[str, ...] = ()) -> Any:
    cell = new_code_cell(source, outputs=list(outputs), execution_count=count)
    cell.metadata.tags = list(tags)
    return cell


def printed(text: str) -> Any:
    return new_output("stream", text=text)


def shown(**data: str) -> Any:
    kinds = {
        "html": "text/html",
        "png": "image/png",
        "text": "text/plain",
        "js": "application/javascript",
    }
    return new_output("display_data", {kinds[name]: value for name, value in data.items()})


def failed(name: str, value: str, *traceback: str) -> Any:
    return new_output("error", ename=name, evalue=value, traceback=list(traceback))


def sound() -> list[Any]:
    return [
        new_markdown_cell("# 09 · Does it work?\n\nA notebook."),
        code('run_dir: str = "runs/demo"\nlimit: int = 0', tags=("parameters",)),
        code("# Parameters\nlimit = 12\n", tags=("injected-parameters",)),
        new_markdown_cell("## The numbers"),
        code("secret_sauce()", shown(html="<table><tr><td>42</td></tr></table>"), count=2),
        new_markdown_cell("### A figure"),
        code("plot()", shown(png=PIXEL, text="<Figure>"), count=3),
        new_markdown_cell("## Verdict"),
        code("print(verdict)", printed("All of it works.\n"), count=4),
    ]


def write(path: Path, cells: list[Any]) -> Path:
    nbformat.write(new_notebook(cells=cells), path)
    return path


def page_of(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(), "html.parser")


def text_of(path: Path) -> str:
    return page_of(path).get_text(" ")


# --- what is in it ------------------------------------------------------------------------


def test_a_report_has_the_verdict_on_top_outputs_contents_parameters_and_no_code(
    tmp_path: Path,
) -> None:
    report = write_report(write(tmp_path / "job.ipynb", sound()))
    assert (report.state, report.verdict) == ("ok", "All of it works.")
    page, text = page_of(report.path), text_of(report.path)
    assert report.path == tmp_path / "job.html"
    assert page.title is not None and page.title.get_text() == "09 · Does it work?"
    assert text.index("All of it works.") < text.index("A notebook.")
    assert "42" in text
    for source in ("secret_sauce", "plot()", "print(verdict)", "run_dir: str"):
        assert source not in report.path.read_text()
    links = [(a.get_text(), a["href"]) for a in page.select("nav ol a")]
    assert [words for words, _ in links] == ["The numbers", "A figure", "Parameters", "Versions"]
    for _, target in links:
        assert page.find(id=str(target)[1:]) is not None, target
    rows = [[cell.get_text() for cell in row.find_all(["th", "td"])] for row in page.find_all("tr")]
    assert ["run_dir", "'runs/demo'"] in rows and ["limit", "12"] in rows
    folded = page.select("details tr")
    assert [row.find("th").get_text() for row in folded] == ["run_dir"]  # at its default
    assert [a["href"] for a in page.select("nav p a")] == ["index.html"]
    assert ["torch", metadata.version("torch")] in rows
    figure = page.find("img")
    assert figure is not None and figure["alt"] == "Figure: A figure"


def test_hints_for_the_person_who_runs_a_notebook_stay_out_unless_their_cell_failed(
    tmp_path: Path,
) -> None:
    hint = new_markdown_cell("## Follow it\n\ntail -f a.log", metadata={"tags": ["hint"]})
    follow = code("follow()", printed("no job"), tags=("hint",))
    page = write_report(write(tmp_path / "a.ipynb", [*sound(), hint, follow])).path.read_text()
    assert "tail -f" not in page and "no job" not in page and "Follow it" not in page
    follow.outputs = [failed("ValueError", "boom", "x")]
    page = write_report(write(tmp_path / "a.ipynb", [*sound(), hint, follow])).path.read_text()
    assert "boom" in page


def test_a_verdict_that_is_shown_and_not_printed_is_found(tmp_path: Path) -> None:
    cells = sound()
    data = {"text/html": "<p>As shown.</p>", "text/plain": "As shown."}
    table = shown(html="<table></table>", text="a table of 3 lines")
    cells[-1].outputs = [table, new_output("display_data", data, metadata={MARK: True})]
    assert write_report(write(tmp_path / "job.ipynb", cells)).verdict == "As shown."


def test_a_report_is_one_file_that_needs_no_other(tmp_path: Path) -> None:
    cells = sound()
    cells[4].outputs.append(shown(js="alert(1)"))
    cells[4].outputs.append(
        shown(html='<script src="https://cdn.example/x.js"></script><b>bold</b>')
    )
    page = page_of(write_report(write(tmp_path / "job.ipynb", cells)).path)
    assert not page.find_all("script")
    assert not page.find_all("link")
    assert all(
        str(image["src"]).startswith("data:image/png;base64,") for image in page.find_all("img")
    )
    assert page.find("b") is not None
    style = page.find("style")
    assert style is not None
    assert "prefers-color-scheme: dark" in style.get_text()
    assert "url(" not in style.get_text()


def test_a_failed_notebook_shows_the_error_and_the_cell(tmp_path: Path) -> None:
    cells = sound()
    note = new_markdown_cell('<span id="papermill-error-cell">Execution using papermill</span>')
    note.metadata.tags = ["papermill-error-cell-tag"]
    error = failed("StoreError", "disk full", "\x1b[31mTraceback\x1b[0m", "StoreError: disk full")
    cells[6] = code("extract.run(job, fleet)", error, count=3)
    cells[8] = code("print(verdict)", count=None)
    report = write_report(write(tmp_path / "job.ipynb", [note, *cells]))
    assert (report.state, report.verdict) == ("failed", "Cell 3: StoreError: disk full")
    page = page_of(report.path)
    cell = page.find(id="failed-cell")
    assert cell is not None
    assert "Cell 3 failed" in cell.get_text()
    assert "extract.run(job, fleet)" in cell.get_text()
    assert "Traceback" in cell.get_text() and "\x1b" not in cell.get_text()
    assert "42" in page.get_text(), "what had run is shown"
    assert "secret_sauce" not in page.get_text(), "code of no other cell"
    assert "papermill" not in page.get_text()
    verdict = page.select_one(".verdict")
    assert verdict is not None and "FAILED" in verdict.get_text()


def test_a_notebook_that_was_cut_off_says_so(tmp_path: Path) -> None:
    cells = sound()
    cells[6].execution_count = cells[8].execution_count = None
    cells[8].outputs = []
    report = write_report(write(tmp_path / "job.ipynb", cells))
    assert report.state == "unfinished"
    assert report.verdict == "Only 3 cells have run."


def test_commands_in_a_verdict_are_code_with_paths_as_they_are_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = sound()
    text = f"Not <sound>: run `python -m hslib verify {tmp_path}/runs/x --repair`, in /tmp/other."
    cells[-1].outputs = [printed(text)]
    write(tmp_path / "job.ipynb", cells)
    (report,) = write_reports(tmp_path)
    for path in (report.path, tmp_path / "index.html"):
        page = page_of(path)
        assert [code.get_text() for code in page.select(".verdict code, article .words code")] == [
            "python -m hslib verify runs/x --repair"
        ]
        assert "Not <sound>: run " in page.get_text() and "/tmp/other" in page.get_text()
        assert str(tmp_path) not in page.get_text()


@pytest.mark.parametrize(
    ("ended", "busy", "state", "verdict"),
    [
        (None, True, "running", "At work: 3 cells have run."),
        (None, False, "unfinished", "Only 3 cells have run."),
        ("2026-01-30T14:05:00", False, "interrupted", "Interrupted: only 3 cells have run."),
        ("2026-01-30T14:05:00", True, "interrupted", "Interrupted: only 3 cells have run."),
    ],
)
def test_an_interrupted_notebook_is_told_from_one_at_work_and_shows_no_empty_headings(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ended: str | None,
    busy: bool,
    state: str,
    verdict: str,
) -> None:
    monkeypatch.setattr("hslib.job.watch.job_since", lambda _run: 2e9 if busy else None)
    cells = sound()
    cells[0].source = "# 03 · Are they there?"
    cells[6].execution_count = cells[8].execution_count = None
    cells[6].outputs = cells[8].outputs = []
    nb = new_notebook(cells=cells)
    nb.metadata.papermill = {"end_time": ended}
    nbformat.write(nb, tmp_path / "03_x.ipynb")
    (report,) = write_reports(tmp_path)
    assert (report.state, report.verdict) == (state, verdict)
    titles = [heading.get_text() for heading in page_of(report.path).select("h2, h3")]
    assert titles == ["The numbers", "Parameters", "Versions"]
    assert page_of(tmp_path / "index.html").select(f"article.{state}")


def test_what_is_no_executed_notebook_is_an_error(tmp_path: Path) -> None:
    never = [new_markdown_cell("# x"), code("1", count=None)]
    with pytest.raises(ReportError, match="never run"):
        write_report(write(tmp_path / "never.ipynb", never))
    (tmp_path / "text.ipynb").write_text("hello")
    with pytest.raises(ReportError, match="not a notebook"):
        write_report(tmp_path / "text.ipynb")
    with pytest.raises(ReportError, match="no such notebook"):
        write_report(tmp_path / "gone.ipynb")
    with pytest.raises(ReportError, match="there is no notebook here"):
        main_report(tmp_path / "empty")


def main_report(path: Path) -> None:
    path.mkdir()
    write_reports(path)


# --- what must not be in it ---------------------------------------------------------------

LEAKS = {
    "an environment's secret": "tr0ub4dor-and-three",
    "a key in a dict": "abcd1234efgh",
    "a key in a table": "table5ecret",
    "a key in the parameters": "param5ecret",
    "a bearer token": "b3arer.token",
    "a host": "gpu-node-17",
    "an internal name": "head.cluster.internal",
    "an address": "10.11.12.13",
    "a home": "/home/mallory",
    "another home": "/Users/mallory",
    "a user in a URL": "mallory:pw",
}


def leaking() -> list[Any]:
    """A notebook that tries to leak each of them, in every kind of place."""
    env, dict_key, table, param, bearer, host, internal, ip, home, mac, user = LEAKS.values()
    text = (
        f"{env} {{'api_key': '{dict_key}'}} Authorization: Bearer {bearer} on {host}, "
        f"{internal} and {ip}; {home}/runs {mac}/x http://{user}@{host}:8000/generate"
    )
    html = f"<table><tr><th>admin_api_key</th><td>{table}</td></tr></table><p>{text}</p>"
    split = [f"File {home}/kit/x.py in \x1b[32mpost\x1b[0m(api_key=", f"'{dict_key}')", text]
    return [
        new_markdown_cell(f"# Leaks at {internal}\n\n{text}"),
        code(
            f'server_url = "http://{user}@{ip}:30000"\nhf_token = "{param}"\nrun_dir = "{home}/r"',
            tags=("parameters",),
        ),
        code("show()", shown(html=html, text=text), printed(text + "\n"), count=2),
        new_markdown_cell("## Verdict"),
        code("print()", printed(f"see {home}/log at {host}\n"), count=3),
        code(f"post('{text}')", failed("ServerError", text, *split), count=4),
    ]


@pytest.fixture
def scrubber() -> Scrubber:
    return Scrubber.of_this_machine(
        {"HSLIB_API_KEY": LEAKS["an environment's secret"], "HOSTNAME": LEAKS["a host"]}
    )


def test_a_notebook_that_tries_to_leak_them_leaks_none(tmp_path: Path, scrubber: Scrubber) -> None:
    cells = leaking()
    cells[2].metadata.papermill = {"environment": LEAKS["an environment's secret"]}
    source = write(tmp_path / "job.ipynb", cells)
    stored = json.loads(source.read_text())
    stored["metadata"]["papermill"] = {"output_path": LEAKS["a home"] + "/out.ipynb"}
    source.write_text(json.dumps(stored))
    report = write_report(source, scrubber=scrubber)
    write_index(tmp_path)
    for page in (report.path, tmp_path / "index.html"):
        raw = page.read_text()
        for what, leak in LEAKS.items():
            assert leak not in raw, f"{what} in {page.name}"
            assert leak not in BeautifulSoup(raw, "html.parser").get_text(), f"{what} as text"
    assert "[secret]" in report.path.read_text()
    assert "[host]" in report.path.read_text()


def test_the_leaks_would_be_there_if_nobody_scrubbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: each of them is really in what is rendered."""
    monkeypatch.setattr(Scrubber, "clean", lambda _self, text: text)
    raw = write_report(write(tmp_path / "job.ipynb", leaking())).path.read_text()
    assert [what for what, leak in LEAKS.items() if leak not in raw] == []


# --- many ---------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", COMMITTED, ids=lambda path: path.stem)
def test_every_committed_notebook_makes_a_report(committed: Path, tmp_path: Path) -> None:
    report = write_report(committed, tmp_path / "x.html", Scrubber())
    assert report.is_good
    assert report.verdict
    source = nbformat.read(committed, as_version=4)
    images = sum(
        "image/png" in o.get("data", {}) for c in source.cells for o in c.get("outputs", [])
    )
    assert len(page_of(report.path).find_all("img")) == images
    assert not re.search(r"\bfrom hslib\b|config\.", text_of(report.path))


def test_an_index_links_all_reports_of_a_run_with_state_and_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.ipynb", sound())
    broken = sound()
    broken[4].outputs = [failed("ValueError", 'bad <b> "x"', "x")]
    write(tmp_path / "b.ipynb", broken)
    assert main(["report", str(tmp_path)]) == 1, "one had failed"
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/a.html: ok",
        f"{tmp_path}/b.html: failed",
        f"the run's page: {tmp_path}/index.html",
    ]
    cards = page_of(tmp_path / "index.html").select("article")
    found = [[p.get_text().split(" · ")[0] for p in card.find_all("p")] for card in cards]
    assert found == [
        ["09", "Ran to the end", "All of it works."],
        ["09", "FAILED", 'Cell 2: ValueError: bad <b> "x"'],
    ]
    assert [a["href"] for a in page_of(tmp_path / "index.html").select("article a")] == [
        "a.html",
        "b.html",
    ]
    (tmp_path / "b.ipynb").unlink()
    write_index(tmp_path)
    assert len(page_of(tmp_path / "index.html").select("article")) == 1, "its notebook is gone"
    assert main(["report", str(tmp_path / "a.ipynb")]) == 0
    assert main(["report", str(tmp_path / "gone.ipynb")]) == 1
