"""The sidebar in JupyterLab and Notebook 7: what it shows, and what it ends, whatever runs."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_stubs import GpuMachine, gpu, gpus
from lab import CHROMIUM, VIEWPORT, LabPage, end, running_lab
from sidebar import *  # noqa: F403 - fixtures
from sidebar import CELLS, POOLS, TASKS, Panel

from jupyter_mgpu import host
from notebooks import wait_until

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("own_runtime_folder"),
]


@pytest.mark.oldest
def test_a_task_is_seen_and_cancelled_while_the_kernel_is_busy(panel: Panel) -> None:
    panel.tab.run(1)
    panel.shows("learn")
    playwright.expect(panel.tab.run(2)).to_contain_text("busy")
    panel.shows(re.compile(r"loss \d+"))
    before = panel.rows("learn").first.inner_text()
    wait_until(lambda: panel.rows("learn").first.inner_text() != before, 30, "progress")

    panel.press(TASKS, "Cancel…")
    playwright.expect(panel.tab.page.get_by_role("dialog")).to_contain_text("is lost")
    panel.answer("Cancel the task")

    playwright.expect(panel.node.locator(TASKS)).to_contain_text("cancelled")
    panel.shows("ready 2/2")
    playwright.expect(panel.tab.cell(2).locator(".jp-InputPrompt")).to_have_text("[*]:")


def test_without_gpus_the_machines_own_load_is_shown(panel: Panel) -> None:
    meters = panel.rows("This machine").get_by_role("meter")

    playwright.expect(meters).to_have_count(2)
    busy, memory = meters.all()

    playwright.expect(busy).to_have_attribute("aria-label", "CPU busy")
    playwright.expect(busy).to_have_attribute("aria-valuetext", re.compile(r"^\d+ %$"))
    total = host.memory_bytes()[1] / 2**30
    playwright.expect(memory).to_have_attribute("aria-valuetext", re.compile(rf"{total:.1f} GiB$"))


def test_a_task_that_is_asked_to_stop_ends_by_itself(panel: Panel) -> None:
    panel.tab.run(1)
    panel.shows("learn")

    panel.press(TASKS, "Stop")

    playwright.expect(panel.node.locator(TASKS)).to_contain_text("finished")


def test_a_pool_is_stopped_only_after_a_question_whose_default_is_no(panel: Panel) -> None:
    panel.tab.run(1)
    panel.shows("learn")

    panel.press(POOLS, "Stop…")
    dialog = panel.tab.page.get_by_role("dialog")
    playwright.expect(dialog).to_contain_text("1 task is running and ends.")
    panel.tab.page.keyboard.press("Enter")
    playwright.expect(dialog).to_have_count(0)
    panel.shows("busy 2/2")
    panel.press(POOLS, "Stop…")
    panel.answer("Stop the pool")

    panel.shows("No pool yet.")


def test_a_list_of_many_tasks_draws_those_that_can_be_seen_and_is_walked_by_keys(
    panel: Panel,
) -> None:
    panel.tab.run(1)
    panel.tab.run(3)
    panel.shows("Background tasks (151)")
    rows = panel.node.locator(TASKS)
    wait_until(lambda: 0 < rows.count() < 60, 30, "few rows")

    rows.first.focus()
    panel.tab.page.keyboard.press("End")

    focused = panel.node.locator(".mgpu-task-row:focus")
    playwright.expect(focused).to_contain_text("wait 149")
    assert rows.count() < 60
    panel.tab.page.keyboard.press("Home")
    playwright.expect(panel.node.locator(".mgpu-task-row:focus")).to_contain_text("running")


def test_a_hidden_panel_is_told_less_and_a_hidden_page_nothing(panel: Panel) -> None:
    page = panel.tab.page
    sent: list[dict[str, Any]] = []
    page.on(
        "websocket",
        lambda socket: socket.on(
            "framesent", lambda text: "jupyter-mgpu" in socket.url and sent.append(json.loads(text))
        ),
    )

    def told() -> list[dict[str, Any]]:
        page.evaluate("() => 0")  # Playwright takes in what has happened while it is called only
        return sent

    page.reload()
    panel.tab.wait_until_ready()
    panel.command("mgpu:open")
    panel.shows("ready 2/2")
    wait_until(lambda: {"type": "interval", "seconds": 1} in told(), 30, "the panel's interval")

    panel.command("filebrowser:activate")
    playwright.expect(panel.node).to_be_hidden()
    wait_until(lambda: told()[-1] == {"type": "interval", "seconds": 5}, 30, "the slow interval")
    page.evaluate(HIDE)

    wait_until(lambda: {"type": "pause"} in told(), 30, "the pause")


def test_a_page_that_nobody_uses_for_long_reads_nothing_until_a_click(panel: Panel) -> None:
    page = panel.tab.page
    page.clock.install()
    page.reload()
    panel.tab.wait_until_ready()
    panel.command("mgpu:open")
    panel.shows("ready 2/2")

    page.clock.fast_forward("31:00")

    panel.shows("The page was not used for half an hour.")
    panel.node.locator(".mgpu-status").click()
    panel.shows("live")


def test_a_ranks_log_is_shown(panel: Panel) -> None:
    panel.press(POOLS, "rank 1")

    dialog = panel.tab.page.get_by_role("dialog")
    playwright.expect(dialog).to_contain_text("Log of rank 1 of main")
    panel.answer("Close")


HIDE = """() => {
    Object.defineProperty(document, 'visibilityState', { value: 'hidden', configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
}"""


def test_a_collapsed_section_stays_collapsed_after_a_reload(panel: Panel) -> None:
    page = panel.tab.page
    title = panel.node.locator(".lm-AccordionPanel-title", has_text="GPUs")
    section = panel.node.locator(".mgpu-section").first
    playwright.expect(section).to_be_visible()

    title.click()
    playwright.expect(section).to_be_hidden()
    name = page.evaluate("() => location.pathname.split('/').at(-3)")
    kept = f"() => window.jupyterapp.serviceManager.workspaces.fetch('{name}')"
    wait_until(lambda: "false" in states(page.evaluate(kept)), 30, "the workspace")
    page.reload()
    panel.tab.wait_until_ready()
    panel.command("mgpu:open")

    panel.shows("ready 2/2")
    playwright.expect(section).to_be_hidden()


def states(workspace: dict[str, Any]) -> str:
    """What a workspace says of which sections of the panel are open."""
    layout = workspace["data"].get("layout-restorer:data", {})
    return json.dumps(layout.get("left", {}).get("widgetStates", {}).get("jupyter-mgpu-panel"))


def test_gpus_are_shown_with_who_uses_them_and_a_lost_one_by_name(
    gpu_machine: Callable[[str], GpuMachine], browser: Any, tmp_path: Path
) -> None:
    machine = gpu_machine(gpus(4))
    cells = ["%load_ext jupyter_mgpu", "%parpool 2 --gpus 1,3 --name main"]
    with running_lab(tmp_path, dict(machine)) as lab:
        lab.add("book.ipynb", cells)
        tab = LabPage(browser.new_page(viewport=VIEWPORT), lab.page("lab/tree/book.ipynb"))
        panel = Panel(tab)
        panel.shows("GPUs (4)")
        tab.run(0)
        tab.run(1)
        playwright.expect(panel.rows("GPU 1").first).to_contain_text("rank 0 of main")
        playwright.expect(panel.rows("GPU 1").first).to_contain_text("proven")
        playwright.expect(panel.rows("GPU 2").first).to_contain_text("idle")

        lines = [gpu(0, util=55, used=14438, temperature=71), gpu(1), gpu(2, lost=1), gpu(3)]
        machine.write("\n".join(lines))

        playwright.expect(panel.rows("GPU 0").first).to_contain_text("55 %")
        playwright.expect(panel.rows("GPU 0").first).to_contain_text("14.1 / 141.0 GiB")
        playwright.expect(panel.rows("GPU 2").first).to_contain_text("lost")
        chip = tab.page.locator(".jp-mgpu-chip")
        playwright.expect(chip).to_contain_text(re.compile(r"GPU 1,3 · \d+ % · \d+/282 GiB"))
        for theme in ("JupyterLab Light", "JupyterLab Dark", "JupyterLab Dark High Contrast"):
            panel.use_theme(theme)
            assert panel.barriers() == []
        assert tab.errors == []
        tab.page.close()


def test_a_server_that_goes_and_comes_back_is_told_in_words(browser: Any, tmp_path: Path) -> None:
    with running_lab(tmp_path) as lab:
        lab.add("book.ipynb", ["1"])
        tab = LabPage(browser.new_page(viewport=VIEWPORT), lab.page("lab/tree/book.ipynb"))
        panel = Panel(tab)
        panel.shows("live")

        end(lab.process)
        panel.shows("No connection to the server since")
        again = subprocess.Popen(
            lab.process.args, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )

        try:
            panel.shows("live")
        finally:
            end(again)
        tab.page.close()


def test_without_the_server_part_the_panel_says_what_to_do(browser: Any, tmp_path: Path) -> None:
    off = ("--ServerApp.jpserver_extensions={'jupyter_mgpu': False}",)
    with running_lab(tmp_path, options=off) as lab:
        lab.add("book.ipynb", ["1"])
        tab = LabPage(browser.new_page(viewport=VIEWPORT), lab.page("lab/tree/book.ipynb"))

        panel = Panel(tab)

        panel.shows("jupyter server extension enable jupyter_mgpu")
        playwright.expect(panel.node.get_by_role("button", name="Try now")).to_be_visible()
        tab.page.close()


def test_notebook_7_has_the_panel_too(browser: Any, tmp_path: Path) -> None:
    with running_lab(tmp_path, app="notebook") as notebook:
        notebook.add("book.ipynb", CELLS)
        tab = LabPage(browser.new_page(viewport=VIEWPORT), notebook.page("notebooks/book.ipynb"))
        panel = Panel(tab)
        tab.run(0)

        panel.shows("ready 2/2")
        assert [error for error in tab.errors if "mgpu" in error] == []
        tab.page.close()
