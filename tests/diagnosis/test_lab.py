"""Notebook 01 as a person uses it: in JupyterLab, in a browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real import lab

pytestmark = [pytest.mark.slow, lab.needs_browser]


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    with lab.opened("01_tokenizer_alignment.ipynb", tmp_path) as page:
        yield page


def test_it_runs_top_to_bottom_and_the_menus_change_the_shown_row(
    page: Any, tmp_path: Path
) -> None:
    page.get_by_text("| Idle").wait_for()
    assert not lab.is_modified(page), "opening it changes nothing"
    assert "#cfe6f7" in lab.still_pictures(page), "colours are kept though it is not trusted"
    lab.run_all(page)
    page.wait_for_function("document.querySelector('.jp-Notebook').innerText.includes('Cure:')")
    pair, cause, row = (page.locator(".widget-dropdown select").nth(n) for n in range(3))
    picture = page.locator(".widget-html div[style*='max-height']").first
    picture.scroll_into_view_if_needed()
    shown = page.locator(".widget-html-content").last
    assert "generation_prompt" in shown.inner_text()
    assert "generation" in pair.locator("option:checked").inner_text()

    row.select_option(index=3)
    lab.wait_for(page, "row 3 (line 4):")
    cause.select_option(index=1)  # the first cause; it begins with its worst row
    lab.wait_for(page, "row 0 (line 1):")
    pair.select_option(index=1)  # none differs: an equal row is shown
    lab.wait_for(page, "the ids are equal")
    pair.select_option(index=0)
    lab.wait_for(page, "generation_prompt")
    page.screenshot(path=str(tmp_path / "lab.png"))
    assert lab.errors(page) == 0
