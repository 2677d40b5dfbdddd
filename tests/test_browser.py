"""The product in JupyterLab, as a user sees it: real clicks in headless Chromium."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from notebooks import wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.timeout(300),
]

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TOKEN = "browser-test"
READY = """async () => {
    const context = window.jupyterapp.shell.currentWidget.sessionContext;
    await context.ready;
    await context.session.kernel.info;
}"""
NUMBERED = re.compile(r"\[\d+\]:")
CELLS = [
    "%load_ext jupyter_mgpu\n%parpool 2",
    """%%spmd
import time
import ipywidgets as w
button, label = w.Button(description=f"press {rank}"), w.Label("not yet")
button.on_click(lambda _: setattr(label, "value", f"pressed on rank {rank}"))
w.HBox([button, label])""",
    """%%spmd
for number in range(2000):
    print("line", number)
    time.sleep(0.05 if number > 300 else 0)""",
    "print('the kernel', 'goes on')",
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a notebook in a running JupyterLab."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "book.ipynb").write_text(json.dumps(_notebook()))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = f"http://127.0.0.1:{port}"
    options = [
        "--no-browser",
        "--expose-app-in-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        f"--port={port}",
        "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={TOKEN}",
        f"--ServerApp.root_dir={folder}",
        "--LabApp.news_url=None",
    ]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *options],
        stdout=(folder / "lab.log").open("w"),
        stderr=subprocess.STDOUT,
    )
    try:
        wait_until(lambda: _answers(f"{base}/api?token={TOKEN}"), 60, "JupyterLab")
        yield f"{base}/doc/tree/book.ipynb?token={TOKEN}"
    finally:
        server.send_signal(signal.SIGTERM)  # ends the kernels, too
        server.wait(30)


def _notebook() -> dict[str, Any]:
    cells = [
        {"cell_type": "code", "id": f"c{number}", "metadata": {}, "source": source}
        | {"outputs": [], "execution_count": None}
        for number, source in enumerate(CELLS)
    ]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": spec}, "cells": cells}


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


class Page:
    """The notebook in the browser."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        page.goto(url)
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        page.evaluate(READY)

    def cell(self, number: int) -> Any:
        return self.page.locator(f".jp-Cell[data-windowed-list-index='{number}']")

    def run(self, number: int) -> Any:
        """Start a cell; returns where its output will be."""
        self.cell(number).locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")
        return self.cell(number).locator(".jp-Cell-outputWrapper")

    def wait_for_end(self, number: int) -> None:
        prompt = self.cell(number).locator(".jp-InputPrompt")
        playwright.expect(prompt).to_have_text(NUMBERED)


@pytest.fixture(scope="module")
def page(lab: str) -> Iterator[Page]:
    """The notebook, with its pool started."""
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        tab = browser.new_page(viewport={"width": 1200, "height": 2000})
        tab.set_default_timeout(60_000)
        playwright.expect.set_options(timeout=60_000)
        opened = Page(tab, lab)
        opened.run(0)
        opened.wait_for_end(0)
        yield opened
        browser.close()


def test_a_button_of_an_engine_is_pressed_and_shows_what_its_rank_did(page: Page) -> None:
    output = page.run(1)
    output.get_by_role("button", name="press 1").click()

    playwright.expect(output.get_by_text("pressed on rank 1")).to_be_visible()
    playwright.expect(output.get_by_text("not yet")).to_have_count(1)


def test_a_lane_shows_its_newest_line_stays_folded_and_stop_ends_the_cell(page: Page) -> None:
    output = page.run(2)
    lanes = output.locator("pre")
    playwright.expect(lanes.first).to_contain_text("line 310")
    assert _is_scrolled_to_its_end(lanes.first)

    output.get_by_text("rank 0").click()
    playwright.expect(lanes.first).to_be_hidden()
    playwright.expect(lanes.last).to_contain_text("line 340")  # many updates later
    playwright.expect(lanes.first).to_be_hidden()
    playwright.expect(lanes.last).to_be_visible()

    page.page.locator("[data-command='notebook:interrupt-kernel']").first.click()
    playwright.expect(
        output.get_by_text("KeyboardInterrupt: The cell was stopped.")
    ).to_be_visible()
    page.wait_for_end(2)
    playwright.expect(page.run(3).get_by_text("the kernel goes on")).to_be_visible()


def _is_scrolled_to_its_end(text: Any) -> bool:
    """Whether the last line of a text lies within the box that scrolls it."""
    return bool(
        text.evaluate(
            "pre => pre.getBoundingClientRect().bottom"
            " <= pre.parentElement.getBoundingClientRect().bottom + 1"
        )
    )
