"""Reports in a browser: wide and narrow, light, dark and in print."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup
from fakes.server import FakeServer
from make import jobs
from make.progress import progress
from make.rows import random_sample, write_rows
from real import lab

from hslib.notebook.report import write_reports
from hslib.parameters import ExtractionParameters

pytestmark = [pytest.mark.slow, lab.needs_browser]

WIDTHS = (1400, 800, 400)
PAGES = ("index.html", *(f"{path.stem}.html" for path in sorted(lab.NOTEBOOKS.glob("*.ipynb"))))


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    with lab.browser_page() as page:
        yield page


@pytest.fixture
def reports(fake: FakeServer, tmp_path: Path) -> Path:
    """Of a run with every committed notebook, and three replicas of which one gave up."""
    run = tmp_path / "a-run-whose-name-is-rather-long"
    rows = write_rows(tmp_path / "rows.jsonl", [random_sample(i, 5 + i) for i in range(6)])
    values = {"dataset_path": str(rows), "model_path": str(fake.model), "server_url": fake.url}
    values |= {"run_dir": str(run), "layers": "1,3,5", "dump_dir": str(fake.dumps)}
    jobs.run(ExtractionParameters.from_values(values))
    states = ("working", "starting", "given up after 3 starts: the node has no room for a replica")
    replicas = [
        {"number": number, "host": "node17", "state": state, "ok": 1200, "samples_per_s": 1.5}
        for number, state in enumerate(states)
    ]
    told = progress(state="interrupted", replicas=replicas).model_dump_json()
    (run / "progress.json").write_text(told)
    for notebook in lab.NOTEBOOKS.glob("*.ipynb"):
        shutil.copy(notebook, run)
    write_reports(run)
    return run


def overflowing(page: Any) -> list[str]:
    """What reaches beyond the window and is in nothing that scrolls by itself."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll('main *, nav *')].filter(element => {
            for (let up = element.parentElement; up; up = up.parentElement)
                if (['auto', 'scroll'].includes(getComputedStyle(up).overflowX)) return false;
            return element.getBoundingClientRect().right > document.documentElement.clientWidth + 1;
        }).map(element => element.outerHTML.slice(0, 200))"""
    )
    return found


def test_nothing_is_cut_off_at_any_width_and_every_page_prints(page: Any, reports: Path) -> None:
    for name in PAGES:
        page.emulate_media(media="screen", color_scheme="light")
        page.goto(f"file://{reports / name}")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 1000})
            assert overflowing(page) == [], (name, width)
            room = page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert room <= 0, (name, width)
        printed = page.pdf(format="A4")
        assert printed.startswith(b"%PDF") and len(printed) > 10_000, name


def test_the_dark_page_is_dark_and_its_figures_have_no_light_ground(
    page: Any, reports: Path
) -> None:
    page.emulate_media(media="screen", color_scheme="dark")
    page.goto(f"file://{reports / '04_statistics.html'}")
    ground: Callable[[str], str] = lambda selector: page.evaluate(  # noqa: E731
        "selector => getComputedStyle(document.querySelector(selector)).backgroundColor", selector
    )
    assert ground("body") == "rgb(17, 17, 17)"
    assert ground(".output_png img") == "rgba(0, 0, 0, 0)"
    page.emulate_media(media="print")
    assert ground("body") == "rgb(255, 255, 255)", "paper is white"


def test_the_run_page_links_every_report(reports: Path) -> None:
    text = BeautifulSoup((reports / "index.html").read_text(), "html.parser")
    assert {str(link["href"]) for link in text.select("a.report")} == {*PAGES} - {"index.html"}
