"""Notebook 01 as a person uses it: in JupyterLab, in a browser."""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "01_tokenizer_alignment.ipynb"
BROWSER = next((p for p in map(shutil.which, ("chromium", "google-chrome", "chrome")) if p), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs a Chromium browser on this host"),
]
WAIT_MS = 60_000


@pytest.fixture
def lab_url(tmp_path: Path) -> Iterator[str]:
    """A JupyterLab over a copy of the notebook; stopped afterwards."""
    root = tmp_path / "lab"
    root.mkdir()
    shutil.copy(NOTEBOOK, root)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(8)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--port={port}", f"--IdentityProvider.token={token}"]
    command += [f"--ServerApp.root_dir={root}", "--LabApp.news_url=None"]
    settings = {"HSLIB_RUNS_ROOT": str(tmp_path), "JUPYTER_CONFIG_DIR": str(tmp_path / "config")}
    log = (tmp_path / "lab.log").open("w")
    process = subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=log)
    try:
        _wait_until_up(f"http://127.0.0.1:{port}/api?token={token}")
        yield f"http://127.0.0.1:{port}/lab/tree/{NOTEBOOK.name}?token={token}"
    finally:
        process.terminate()
        process.wait(30)
        log.close()


def _wait_until_up(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if httpx.get(url, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.3)
    raise AssertionError("JupyterLab did not start")


@pytest.fixture
def page(lab_url: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(WAIT_MS)
        page.goto(lab_url)
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        yield page
        browser.close()


def _run_all(page: Any) -> None:
    page.get_by_text("| Idle").wait_for()  # what runs before the kernel is there is lost
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_selector(".jp-Notebook .widget-dropdown select")


def test_it_runs_top_to_bottom_and_the_menus_change_the_shown_row(
    page: Any, tmp_path: Path
) -> None:
    _run_all(page)
    page.wait_for_function("document.querySelector('.jp-Notebook').innerText.includes('Cure:')")
    pair, cause, row = (page.locator(".widget-dropdown select").nth(n) for n in range(3))
    picture = page.locator(".widget-html .hs-diff").first
    picture.scroll_into_view_if_needed()
    shown = page.locator(".widget-html-content").last
    assert "generation_prompt" in shown.inner_text()
    assert "generation" in pair.locator("option:checked").inner_text()

    row.select_option(index=3)
    _wait_for(page, "row 3:")
    cause.select_option(index=1)  # the first cause; it begins with its worst row
    _wait_for(page, "row 0:")
    pair.select_option(index=1)
    _wait_for(page, "no row")
    cause.select_option(index=1)  # none differs: the next is "equal ids"
    _wait_for(page, "the ids are equal")
    pair.select_option(index=0)
    _wait_for(page, "generation_prompt")
    page.screenshot(path=str(tmp_path / "lab.png"))
    errors = page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.error']")
    assert errors.count() == 0


def _wait_for(page: Any, text: str) -> None:
    """Until the widget shows this; menus answer from the kernel."""
    page.wait_for_function(
        "text => [...document.querySelectorAll('.widget-html-content')]"
        ".some(e => e.innerText.includes(text))",
        arg=text,
    )
