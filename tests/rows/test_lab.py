"""Notebook 00 as a person uses it: in JupyterLab, in a browser."""

from pathlib import Path

import pytest
from real import lab

pytestmark = [pytest.mark.slow, lab.needs_browser]


def test_it_runs_top_to_bottom_and_the_menu_changes_the_shown_row(tmp_path: Path) -> None:
    with lab.opened("00_rows.ipynb", tmp_path) as page:
        lab.run_all(page)
        lab.wait_for(page, "that train")
        menu = page.locator(".widget-dropdown select").first
        for number in (3, 0):
            name = menu.locator("option").nth(number).inner_text().split()[0].rstrip(",:")
            menu.select_option(index=number)
            lab.wait_for(page, f"row {name}")
        page.wait_for_function(
            "document.querySelector('.jp-Notebook').innerText.includes('ROWS MADE: 256')"
        )
        page.screenshot(path=str(tmp_path / "lab.png"))
        trained = page.locator(".widget-html-content span[style*='bfe0f5']")
        assert trained.count() > 0, "the colours are inline"
        assert lab.errors(page) == 0
