"""The views of a notebook in JupyterLab and Notebook 7: live, reloaded, without their kernel."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ipykernel
import pytest
from lab import CHROMIUM, VIEWPORT, Lab, LabPage, running_browser, running_lab

from notebooks import wait_until

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.timeout(300),
]

# The kernel's end of a view, as small as it can be: it counts what it is asked for.
KERNEL_END = """
import json, os, threading, time
from IPython.display import display

asked, comms = [], []

def state(running, **more):
    return {"version": 1, "kind": "pool", "id": "view-1", "at": time.time(), "final": False,
            "notice": None, "name": "main", "state": "ready", "started": time.time(),
            "notebook": "book.ipynb", "queued": 0, "running": running, "engines": []} | more

def tell(message):
    for comm in comms:
        comm.send(message)

def on_message(message):
    asked.append(message["content"]["data"])
    if "action" in asked[-1]:
        tell({"done": {**asked[-1], "ok": True, "words": "Heard while the cell runs."}})

def on_open(comm, message):
    if message["content"]["data"]["id"] != "view-1":
        comm.send({"gone": True})
        comm.close()
        return
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, default: default
    comm.on_msg(on_message)
    comms.append(comm)
    comm.send({"state": state(7)})

get_ipython().kernel.comm_manager.register_target("jupyter_mgpu.view", on_open)
print("ready")
"""
PID = "print('process', os.getpid(), 'runs this')"
MIME = "application/vnd.jupyter-mgpu.view.v1+json"
SHOW = """bundle = {"text/plain": "pool main", "text/html": "<p>pool main</p>",
          "application/vnd.jupyter.widget-view+json": {"model_id": "none", "version_major": 2},
          "application/vnd.jupyter-mgpu.view.v1+json": state(3)}
display(bundle, raw=True)"""
BUSY = """for number in range(10, 4000):
    tell({"state": state(number)})
    time.sleep(0.05)
    if any("action" in message for message in asked):
        break"""
VISIBLE = """def told():
    return [message["visible"] for message in asked if "visible" in message]

end = time.monotonic() + 50
while told()[-1:] != [True] and time.monotonic() < end:
    time.sleep(0.05)  # another thread of the kernel may take them
print("visible", told())"""
END = """tell({"bundle": {"text/plain": "at its end", MIME: state(99, final=True)}})"""
CELLS = [KERNEL_END, SHOW, BUSY, VISIBLE, f"MIME = {MIME!r}\n{END}", PID]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running_browser() as driven:
        yield driven


@pytest.fixture
def tab(lab: Lab, browser: Any, request: pytest.FixtureRequest) -> Iterator[LabPage]:
    """A notebook of its own, with the view shown in cell 1."""
    name = request.node.name[5:35]  # each test in a workspace of its own: no other tabs
    lab.add(f"{name}.ipynb", CELLS)
    opened = LabPage(
        browser.new_page(viewport=VIEWPORT), lab.page(f"lab/workspaces/{name}/tree/{name}.ipynb")
    )
    playwright.expect(opened.run(0)).to_contain_text("ready")
    playwright.expect(opened.run(1)).to_contain_text("7 running")
    yield opened
    assert opened.errors == []
    opened.page.close()


def shows(tab: LabPage, text: str | re.Pattern[str], cell: int = 1) -> None:
    playwright.expect(tab.output(cell)).to_contain_text(text)


@pytest.mark.skipif(
    ipykernel.version_info < (7, 1), reason="it takes messages only when the cell has ended"
)
def test_the_kernel_feeds_a_view_and_takes_its_buttons_while_a_cell_runs(tab: LabPage) -> None:
    tab.run(2)
    shows(tab, re.compile(r"[1-9]\d running"))
    tab.output(1).get_by_role("button", name="Interrupt").click()

    shows(tab, "Heard while the cell runs.")
    playwright.expect(tab.cell(2).locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\d+\]:"))


@pytest.mark.oldest
def test_a_page_that_is_loaded_again_is_live_again(tab: LabPage) -> None:
    tab.command("docmanager:save")
    tab.page.reload()
    tab.wait_until_ready()

    shows(tab, "7 running")
    playwright.expect(tab.output(1).get_by_role("button", name="Interrupt")).to_be_visible()


def test_without_its_kernel_a_notebook_shows_the_last_state_and_says_so(
    lab: Lab, browser: Any
) -> None:
    at = {"version": 1, "kind": "pool", "id": "view-2", "at": 1.7e9, "final": False}
    facts = {"name": "main", "state": "ready", "started": 1.7e9, "notebook": "old.ipynb"}
    state = {**at, **facts, "notice": None, "queued": 0, "running": 3, "engines": []}
    html = {"text/plain": "pool main", "text/html": "<p>pool main</p>"}
    lab.add("old.ipynb", ["1"], {0: {**html, MIME: state}})

    tab = LabPage(browser.new_page(viewport=VIEWPORT), lab.page("doc/tree/old.ipynb"))

    shows(tab, re.compile(r"Not live since .*2023.*: this kernel does not have it any more"), 0)
    shows(tab, "3 running", 0)
    playwright.expect(tab.output(0).get_by_role("button", name="Stop")).to_have_count(0)
    assert tab.errors == []
    tab.page.close()


def test_a_kernel_that_is_restarted_or_ends_leaves_the_last_state(lab: Lab, tab: LabPage) -> None:
    kernel = kernel_of(lab, tab)
    lab.api("POST", f"kernels/{kernel}/restart")

    shows(tab, "the kernel was restarted")
    shows(tab, "7 running")
    lab.api("DELETE", f"kernels/{kernel}")
    shows(tab, "no kernel is running")
    shows(tab, "7 running")


def test_a_restart_is_told_also_where_the_news_of_it_is_lost(lab: Lab, browser: Any) -> None:
    lab.add("lost.ipynb", CELLS)
    page = browser.new_page(viewport=VIEWPORT)
    page.route_web_socket(re.compile("/channels"), without_starts)
    tab = LabPage(page, lab.page("doc/tree/lost.ipynb"))
    playwright.expect(tab.run(0)).to_contain_text("ready")
    playwright.expect(tab.run(1)).to_contain_text("7 running")

    lab.api("POST", f"kernels/{kernel_of(lab, tab)}/restart")

    shows(tab, "the kernel was restarted")
    assert tab.errors == []
    page.close()


def without_starts(route: Any) -> None:
    """Pass on what a kernel sends, but not that it starts: it may do so before it is heard."""
    server = route.connect_to_server()

    def pass_on(message: str | bytes) -> None:
        data = message if isinstance(message, bytes) else message.encode()
        if b'"starting"' not in data and b"iopub_welcome" not in data:
            route.send(message)

    server.on_message(pass_on)


def test_a_killed_kernel_leaves_the_last_state(tab: LabPage) -> None:
    playwright.expect(tab.run(5)).to_contain_text("runs this")
    pid = re.search(r"process (\d+)", tab.output(5).inner_text())

    os.kill(int(pid.group(1)), signal.SIGKILL)

    shows(tab, "the kernel was restarted")
    shows(tab, "7 running")


def kernel_of(lab: Lab, tab: LabPage) -> str:
    path = tab.page.evaluate("() => window.jupyterapp.shell.currentWidget.context.path")
    sessions = lab.api("GET", "sessions")
    return next(one["kernel"]["id"] for one in sessions if one["path"] == path)


def test_a_hidden_view_tells_the_kernel_so(tab: LabPage) -> None:
    tab.page.evaluate("() => window.jupyterapp.commands.execute('launcher:create')")
    playwright.expect(tab.output(1)).to_be_hidden()
    tab.page.locator(".lm-DockPanel-tabBar .lm-TabBar-tab").first.click()
    playwright.expect(tab.output(1)).to_be_visible()

    playwright.expect(tab.run(3)).to_contain_text("visible [False, True]")


def test_what_the_kernel_renews_is_what_the_notebook_saves(lab: Lab, tab: LabPage) -> None:
    tab.run(4)

    shows(tab, "99 running")
    tab.command("docmanager:save")
    path = tab.page.evaluate("() => window.jupyterapp.shell.currentWidget.context.path")
    wait_until(lambda: "at its end" in (lab.folder / path).read_text(), 60, "the saved notebook")
    assert "widget-view" not in (lab.folder / path).read_text().split("display(bundle")[1]
    playwright.expect(tab.output(1).get_by_role("button", name="Stop")).to_have_count(0)


def test_notebook_7_shows_a_live_view(browser: Any, tmp_path: Path) -> None:
    with running_lab(tmp_path, app="notebook") as notebook:
        notebook.add("book.ipynb", CELLS)
        tab = LabPage(browser.new_page(viewport=VIEWPORT), notebook.page("notebooks/book.ipynb"))
        playwright.expect(tab.run(0)).to_contain_text("ready")

        playwright.expect(tab.run(1)).to_contain_text("7 running")
        assert [error for error in tab.errors if "mgpu" in error] == []  # it has one of its own
        tab.page.close()
