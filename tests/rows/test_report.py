"""Notebook 00's report in a browser: nothing is wider than the page, or as pale as its ground."""

import shutil
from pathlib import Path

import pytest
from real import lab

from hslib.notebook.report import write_report

pytestmark = [pytest.mark.slow, lab.needs_browser]

# tokens whose colour is nearer to their ground's than WCAG's 4.5 to 1
PALE = """() => {
    const light = text => text.match(/[0-9.]+/g).slice(0, 3).map(n => n / 255)
        .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const contrast = style => {
        const both = [light(style.color), light(style.backgroundColor)];
        return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    };
    const tokens = [...document.querySelectorAll("span[style*='background']")];
    return [tokens.length, tokens.filter(e => contrast(getComputedStyle(e)) < 4.5).length];
}"""


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_can_be_read(tmp_path: Path, width: int, theme: str) -> None:
    from playwright.sync_api import sync_playwright

    notebook = Path(shutil.copy(lab.NOTEBOOKS / "00_rows.ipynb", tmp_path))
    report = write_report(notebook).path
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=lab.BROWSER, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 1000}, color_scheme=theme)
        page.goto(report.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") == width
        tokens, pale = page.evaluate(PALE)
        assert tokens > 100
        assert pale == 0
        browser.close()
