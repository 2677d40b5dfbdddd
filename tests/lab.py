"""A real JupyterLab or Notebook 7 in headless Chromium for tests: notebooks, cells, clicks."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from free_ports import free_port
from view_page import CHROMIUM

from notebooks import wait_until

TIMEOUT_MS = 60_000
VIEWPORT = {"width": 1200, "height": 1400}
TOKEN = "browser-test"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
READY = """async () => {
    const context = window.jupyterapp.shell.currentWidget.sessionContext;
    await context.ready;
    await context.session?.kernel?.info;
}"""
NO_NEWS = '{"fetchNews": "false", "checkForUpdates": false}'
NUMBERED = re.compile(r"\[\d+\]:")


class Lab:
    """A running server.

    Args:
        base: Its address.
        folder: Where its notebooks are.
        process: What runs it.
        token: What it lets in.
    """

    def __init__(
        self, base: str, folder: Path, process: "subprocess.Popen[bytes]", token: str = TOKEN
    ) -> None:
        self.base = base
        self.folder = folder
        self.process = process
        self.token = token

    def add(
        self, name: str, cells: Sequence[str], outputs: dict[int, dict[str, Any]] | None = None
    ) -> None:
        """Write a notebook; `outputs` are the MIME bundles that cells show, by their numbers."""
        (self.folder / name).write_text(json.dumps(notebook_of(cells, outputs or {})))

    def url(self, name: str) -> str:
        """Return the address of a notebook, opened alone."""
        return self.page(f"doc/tree/{name}")

    def page(self, path: str) -> str:
        """Return the address of one of the server's pages."""
        return f"{self.base}/{path}?token={self.token}"

    def api(self, method: str, path: str) -> Any:
        """Ask the server's own REST interface."""
        request = urllib.request.Request(self.page(f"api/{path}"), method=method)
        request.add_header("Authorization", f"token {self.token}")
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.loads(response.read() or b"null")


def notebook_of(
    cells: Sequence[str], outputs: dict[int, dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return a notebook as it is in its file."""
    made = [
        {"cell_type": "code", "id": f"c{number}", "metadata": {}, "source": source}
        | {"outputs": [], "execution_count": None}
        for number, source in enumerate(cells)
    ]
    for number, data in (outputs or {}).items():
        made[number]["outputs"] = [{"output_type": "display_data", "data": data, "metadata": {}}]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": spec}, "cells": made}


@contextlib.contextmanager
def running_lab(
    folder: Path,
    environment: dict[str, str] | None = None,
    disabled: Sequence[str] = (),
    *,
    app: str = "jupyterlab",
    base_url: str = "/",
    token: str = TOKEN,
    options: Sequence[str] = (),
) -> Iterator[Lab]:
    """Start JupyterLab in a folder; its kernels end with it.

    Args:
        folder: Where its notebooks are.
        environment: Variables of the server and its kernels.
        disabled: Extensions that it does not load.
        app: The module to run: jupyterlab or notebook.
        base_url: Where its pages are.
        token: What lets a browser in.
        options: More words of its command line.
    """
    settings = folder / "config" / "labconfig"
    settings.mkdir(parents=True, exist_ok=True)
    off = {"disabledExtensions": dict.fromkeys(disabled, True)}
    (settings / "page_config.json").write_text(json.dumps(off))
    user = settings.parent / "lab" / "user-settings" / "@jupyterlab" / "apputils-extension"
    user.mkdir(parents=True, exist_ok=True)
    (user / "notification.jupyterlab-settings").write_text(NO_NEWS)
    port = free_port()
    command = [
        sys.executable,
        "-m",
        app,
        "--no-browser",
        "--expose-app-in-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        f"--port={port}",
        "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={folder}",
        f"--ServerApp.base_url={base_url}",
        "--LabApp.news_url=None",
        *options,
    ]
    base = f"http://127.0.0.1:{port}{base_url.rstrip('/')}"
    with (folder / "lab.log").open("w") as log:
        server = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                **(environment or {}),
                "JUPYTER_CONFIG_DIR": str(settings.parent),
            },
        )
        try:
            wait_until(lambda: _answers(f"{base}/api?token={token}"), 60, "JupyterLab")
            yield Lab(base, folder, server, token)
        finally:
            end(server)


def end(server: "subprocess.Popen[bytes]") -> None:
    """End a server with its kernels."""
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(30)
    except subprocess.TimeoutExpired:
        # Ended amid a request for files, jupyter_server waits for ever for AnyIO's threads.
        # That it ends with our part in it is a test of its own, in test_server_process.
        server.kill()
        server.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


@contextlib.contextmanager
def running_browser() -> Iterator[Any]:
    """Start Chromium."""
    from playwright import sync_api

    sync_api.expect.set_options(timeout=TIMEOUT_MS)
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class LabPage:
    """A notebook in a page of its own.

    Args:
        page: The page.
        url: The notebook's address.

    Attributes:
        errors: What the page has written to its console as an error.
    """

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.errors: list[str] = []
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", self._take_console)
        page.on("pageerror", lambda error: self.errors.append(f"{error.message}\n{error.stack}"))
        page.goto(url)
        self.wait_until_ready()

    def _take_console(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def wait_until_ready(self) -> None:
        self.page.wait_for_selector(".jp-Notebook .jp-Cell")
        self.page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.sessionContext")
        self.page.evaluate(READY)

    def reload(self) -> None:
        """Load the page again."""
        self.page.reload()
        self.wait_until_ready()

    def cell(self, number: int) -> Any:
        return self.page.locator(f".jp-Cell[data-windowed-list-index='{number}']")

    def output(self, number: int) -> Any:
        return self.cell(number).locator(".jp-Cell-outputWrapper")

    def run(self, number: int) -> Any:
        """Start a cell; returns where its output will be."""
        self.cell(number).locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")
        return self.output(number)

    def run_to_end(self, number: int) -> Any:
        """Run a cell, and wait for its end."""
        output = self.run(number)
        self.wait_for_end(number)
        return output

    def wait_for_end(self, number: int) -> None:
        from playwright import sync_api

        prompt = self.cell(number).locator(".jp-InputPrompt")
        sync_api.expect(prompt).to_have_text(NUMBERED)

    def command(self, name: str) -> None:
        """Run a command of JupyterLab."""
        self.page.evaluate("name => window.jupyterapp.commands.execute(name)", name)
