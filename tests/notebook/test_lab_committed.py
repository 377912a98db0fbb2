"""Every committed notebook as JupyterLab opens it from git: not trusted, light and dark."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from real import lab

pytestmark = [pytest.mark.slow, lab.needs_browser]

COMMITTED = sorted(lab.NOTEBOOKS.glob("*.ipynb"))
_COLOUR = re.compile(r"(?:color|background|border-bottom|border):[^;\"]*(#[0-9a-fA-F]{3,6})")


def committed_html(notebook: Path) -> str:
    """What its outputs show as HTML."""
    outputs = [o for cell in nbformat.read(notebook, 4).cells for o in cell.get("outputs", [])]
    return "".join(o["data"].get("text/html", "") for o in outputs if "data" in o)


@pytest.mark.parametrize("notebook", COMMITTED, ids=lambda path: path.stem)
def test_outputs_need_no_style_sheet_and_headings_fit_the_contents_list(notebook: Path) -> None:
    """JupyterLab drops a style sheet from a notebook that is not trusted."""
    without_frames = re.sub(r"(?s)<style scoped>.*?</style>", "", committed_html(notebook))
    assert "<style" not in without_frames, "but for pandas' own, which aligns numbers only"
    for cell in nbformat.read(notebook, 4).cells:
        for heading in re.findall(r"(?m)^##+ (.*)$", cell.source * (cell.cell_type == "markdown")):
            assert len(heading) <= 40, heading


def test_each_opens_unmodified_and_keeps_its_colours_in_both_themes(tmp_path: Path) -> None:
    with lab.all_committed(tmp_path) as (page, url):
        for theme in ("JupyterLab Light", "JupyterLab Dark"):
            lab.choose_theme(tmp_path, theme)
            for notebook in COMMITTED:
                page.goto(url.format(notebook.name) + "&reset")
                page.wait_for_selector(".jp-Notebook .jp-Cell")
                page.get_by_text("| Idle").wait_for()  # the kernel says its version by then
                assert page.evaluate("document.body.dataset.jpThemeName") == theme
                assert not lab.is_modified(page), f"opening {notebook.name} changes nothing"
                shown = lab.still_pictures(page)
                lost = {*_COLOUR.findall(committed_html(notebook))} - {*_COLOUR.findall(shown)}
                assert not lost, (notebook.name, json.dumps(sorted(lost)))
                assert lab.errors(page) == 0
