"""A real JupyterLab or Notebook 7 with a browser in front of it."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from notebooks import wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
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
NO_NEWS = '{"fetchNews": "false", "checkForUpdates": false}'
READY = """async () => {
    const context = window.jupyterapp.shell.currentWidget.sessionContext;
    await context.ready;
    await context.session?.kernel?.info;
}"""


@dataclass(frozen=True)
class Lab:
    """A server that runs, and the folder that it shows."""

    base: str
    folder: Path
    process: subprocess.Popen[bytes]

    def url(self, path: str) -> str:
        return f"{self.base}{path}?token={TOKEN}"

    def api(self, method: str, path: str) -> Any:
        """Ask the server's REST interface."""
        request = urllib.request.Request(self.url(f"api/{path}"), method=method)
        request.add_header("Authorization", f"token {TOKEN}")
        with urllib.request.urlopen(request, timeout=30) as response:
            text = response.read()
        return json.loads(text) if text else None


@contextlib.contextmanager
def running_lab(
    folder: Path,
    *,
    app: str = "jupyterlab",
    base_url: str = "/",
    environment: dict[str, str] | None = None,
    options: tuple[str, ...] = (),
) -> Iterator[Lab]:
    """A server for the length of a with-block.

    Args:
        folder: What it shows; its log goes there, too.
        app: The module to run: jupyterlab or notebook.
        base_url: Where its pages are.
        environment: What its processes have more.
        options: More words of its command line.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lab_options = "LabApp" if app == "jupyterlab" else "JupyterNotebookApp"
    command = [
        *[sys.executable, "-m", app, "--no-browser", "--allow-root", "--ip=127.0.0.1"],
        *[f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}"],
        *[f"--ServerApp.root_dir={folder}", f"--ServerApp.base_url={base_url}"],
        *[f"--{lab_options}.expose_app_in_browser=True", "--LabApp.news_url=None", *options],
    ]
    settings = folder / ".settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(NO_NEWS)
    own = {"JUPYTERLAB_SETTINGS_DIR": str(folder / ".settings")}
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **own, **(environment or {})}, stdout=log, stderr=log
        )
    lab = Lab(f"http://127.0.0.1:{port}{base_url}", folder, process)
    try:
        wait_until(lambda: _answers(lab.url("api")), 60, app)
        yield lab
    finally:
        process.send_signal(signal.SIGTERM)  # ends the kernels, too
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def write_notebook(
    path: Path, sources: list[str], outputs: dict[int, dict[str, Any]] | None = None
) -> None:
    """Write a notebook; `outputs` are the MIME bundles that cells have, by the cells' numbers."""
    cells = []
    for number, source in enumerate(sources):
        cell = {"cell_type": "code", "id": f"c{number}", "metadata": {}, "source": source}
        bundle = (outputs or {}).get(number)
        shown = [{"output_type": "display_data", "data": bundle, "metadata": {}}] if bundle else []
        cells.append({**cell, "outputs": shown, "execution_count": None})
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": spec}, "cells": cells}
    path.write_text(json.dumps(book))


@dataclass
class Tab:
    """A page of the browser, and what its console said."""

    page: Any
    errors: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, browser: Any, **options: Any) -> "Tab":
        page = browser.new_page(viewport={"width": 1200, "height": 1400}, **options)
        page.set_default_timeout(60_000)
        tab = cls(page)
        page.on("console", lambda said: tab._hear(said.type, said.text))
        page.on("pageerror", lambda error: tab._hear("error", f"{error.message}\n{error.stack}"))
        return tab

    def _hear(self, kind: str, text: str) -> None:
        if kind == "error":
            self.errors.append(text)

    def goto(self, url: str) -> "Tab":
        """Load a notebook and wait for its kernel."""
        self.page.goto(url)
        self.wait_for_notebook()
        return self

    def wait_for_notebook(self) -> None:
        self.page.wait_for_selector(".jp-Notebook .jp-Cell")
        self.page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.sessionContext")
        self.page.evaluate(READY)

    def cell(self, number: int) -> Any:
        return self.page.locator(f".jp-Cell[data-windowed-list-index='{number}']")

    def output(self, number: int) -> Any:
        return self.cell(number).locator(".jp-Cell-outputWrapper")

    def run(self, number: int) -> Any:
        """Start a cell; returns where its output will be."""
        self.cell(number).locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")
        return self.output(number)

    def save(self) -> None:
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser for the length of a with-block."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=60_000)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()
