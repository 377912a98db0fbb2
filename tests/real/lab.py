"""A notebook in JupyterLab, in a browser without a window."""

import json
import os
import platform
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
BROWSER = next((p for p in map(shutil.which, ("chromium", "google-chrome", "chrome")) if p), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs a Chromium browser on this host")
WAIT_MS = 60_000


@contextmanager
def opened(notebook: str, folder: Path) -> Iterator[Any]:
    """A page of a JupyterLab over a copy of the notebook; both are stopped afterwards."""
    with _lab_url([NOTEBOOKS / notebook], folder) as url, browser_page() as page:
        page.goto(url.format(notebook))
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        yield page


@contextmanager
def all_committed(folder: Path) -> Iterator[tuple[Any, str]]:
    """A page, and the address of each notebook with ``{}`` for its name; none is trusted."""
    with _lab_url(sorted(NOTEBOOKS.glob("*.ipynb")), folder) as url, browser_page() as page:
        yield page, url


@contextmanager
def browser_page(width: int = 1400) -> Iterator[Any]:
    """A page of a browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 1000})
        page.set_default_timeout(WAIT_MS)
        yield page
        browser.close()


@contextmanager
def _lab_url(notebooks: list[Path], folder: Path) -> Iterator[str]:
    root = folder / "lab"
    root.mkdir()
    for notebook in notebooks:
        (root / notebook.name).write_text(_as_of_this_python(notebook.read_text()))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(8)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--port={port}", f"--IdentityProvider.token={token}"]
    command += [f"--ServerApp.root_dir={root}", "--LabApp.news_url=None"]
    settings = {"HSLIB_RUNS_ROOT": str(folder), "JUPYTER_CONFIG_DIR": str(folder / "config")}
    log = (folder / "lab.log").open("w")
    process = subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=log)
    try:
        _wait_until_up(f"http://127.0.0.1:{port}/api?token={token}")
        yield f"http://127.0.0.1:{port}/lab/tree/{{}}?token={token}"
    finally:
        process.terminate()
        process.wait(180)  # for its kernels
        log.close()


def _as_of_this_python(notebook: str) -> str:
    """JupyterLab writes the kernel's Python version into a notebook that has another."""
    return re.sub(
        r'"version": "3[.]\d+[.]\d+"', f'"version": "{platform.python_version()}"', notebook
    )


def choose_theme(folder: Path, theme: str) -> None:
    """For what is opened from now on in the JupyterLab of this folder."""
    kept = folder / "config/lab/user-settings/@jupyterlab/apputils-extension"
    kept.mkdir(parents=True, exist_ok=True)
    (kept / "themes.jupyterlab-settings").write_text(json.dumps({"theme": theme}))


def is_modified(page: Any) -> bool:
    """Whether the tab has the mark of unsaved changes."""
    return bool(page.locator(".jp-mod-dirty").count())


_STILL = """async () => {
    let found = '';
    const panel = document.querySelector('.jp-WindowedPanel-outer');
    for (let y = 0; y < panel.scrollHeight; y += 600) {
        panel.scrollTo(0, y);
        await new Promise(done => setTimeout(done, 200));
        for (const shown of document.querySelectorAll('.jp-RenderedHTML')) found += shown.innerHTML;
    }
    panel.scrollTo(0, 0);
    return found;
}"""


def still_pictures(page: Any) -> str:
    """The HTML of what is shown as it was committed, from top to bottom."""
    return str(page.evaluate(_STILL))


def _wait_until_up(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if httpx.get(url, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.3)
    raise AssertionError("JupyterLab did not start")


def run_all(page: Any) -> None:
    """Return when the menus are there."""
    page.get_by_text("| Idle").wait_for()  # what runs before the kernel is there is lost
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_selector(".jp-Notebook .widget-dropdown select")


def wait_for(page: Any, text: str) -> None:
    """Until the widget shows this; menus answer from the kernel."""
    page.wait_for_function(
        "text => [...document.querySelectorAll('.widget-html-content')]"
        ".some(e => e.innerText.includes(text))",
        arg=text,
    )


def errors(page: Any) -> int:
    """Cells that ended in one."""
    found = page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.error']")
    return int(found.count())
