"""What can be done in the sidebar: menus, keys, code for a notebook, notifications, the history."""

import csv
import io
import json
import re
from typing import Any

import pytest
from lab import CHROMIUM
from sidebar import *  # noqa: F403 - fixtures
from sidebar import CELLS, POOLS, TASKS, Panel

from notebooks import wait_until

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("own_runtime_folder"),
]


def notes(panel: Panel) -> Any:
    return panel.tab.page.locator(".Toastify__toast")


def test_a_rows_menu_has_what_its_buttons_have_no_room_for(panel: Panel) -> None:
    panel.tab.run(1)
    panel.shows("learn")

    menu = panel.menu_of(panel.node.locator(TASKS).first)

    entries = menu.locator(".lm-Menu-item")
    names = ["Stop", "Stop after epoch", "Cancel…", "Output", "Save the list of tasks as CSV"]
    playwright.expect(entries).to_have_text(names)
    # It has reported no epoch.
    playwright.expect(entries.nth(1)).to_have_class(re.compile("lm-mod-disabled"))
    entries.nth(0).click()
    playwright.expect(panel.node.locator(TASKS)).to_contain_text("finished")


def test_the_menu_key_opens_a_rows_menu_and_escape_leads_back(panel: Panel) -> None:
    page = panel.tab.page
    row = panel.node.locator(POOLS).first
    row.focus()

    page.keyboard.press("ContextMenu")
    menu = page.locator(".jp-mgpu-menu")

    names = ["Interrupt", "Restart…", "Stop…", "Insert code", "Open its notebook"]
    playwright.expect(menu.locator(".lm-Menu-item")).to_have_text(names)
    page.keyboard.press("Escape")
    playwright.expect(menu).to_have_count(0)
    playwright.expect(row).to_be_focused()


def test_a_pool_is_stopped_and_its_notebook_opened_with_keys_alone(panel: Panel) -> None:
    page = panel.tab.page
    row = panel.node.locator(POOLS).first
    row.focus()

    page.keyboard.press("Enter")
    wait_until(lambda: "Notebook" in page.evaluate(FOCUS), 30, "the notebook")
    row.focus()
    page.keyboard.press("Delete")
    playwright.expect(panel.dialog).to_contain_text("No task is running.")
    page.keyboard.press("Escape")
    playwright.expect(panel.dialog).to_have_count(0)
    panel.shows("ready 2/2")
    row.focus()
    page.keyboard.press("Delete")
    panel.dialog.get_by_role("button", name="Stop the pool").focus()
    page.keyboard.press("Enter")

    panel.shows("No pool yet.")


FOCUS = "() => document.activeElement.closest('.jp-NotebookPanel')?.className ?? ''"


def test_the_line_that_starts_a_pool_is_put_below_the_current_cell(panel: Panel) -> None:
    cells = panel.tab.page.locator(".jp-Notebook .jp-CodeCell")
    playwright.expect(cells).to_have_count(len(CELLS))

    panel.press(POOLS, "%parpool 2 --name main")

    playwright.expect(cells).to_have_count(len(CELLS) + 1)
    playwright.expect(cells.nth(1)).to_contain_text("%parpool 2 --name main")


def test_engines_are_restarted_after_a_question(panel: Panel) -> None:
    panel.tab.run(1)
    panel.shows("learn")

    panel.press(POOLS, "Restart…")
    playwright.expect(panel.dialog).to_contain_text("variables on them are lost")
    panel.answer("Restart")

    # Beside it another one tells that the task has failed.
    told = notes(panel).filter(has_text="New engines start on all ranks")
    playwright.expect(told).to_be_visible()
    playwright.expect(panel.node.locator(TASKS)).to_contain_text("failed")
    panel.shows("ready 2/2")


def test_a_stuck_cell_is_interrupted_from_the_panel(panel: Panel) -> None:
    panel.tab.cell(2).locator(".cm-content").click()
    panel.tab.page.keyboard.press("Control+a")
    panel.tab.page.keyboard.insert_text("mgpu.parfeval(time.sleep, 600, name='stuck').result()")
    panel.tab.page.keyboard.press("Home")
    panel.tab.page.keyboard.insert_text("import time; ")
    panel.tab.page.keyboard.press("Control+Enter")
    panel.shows("1 running")  # not "stuck", which is in the notebook's name too

    panel.press(POOLS, "Interrupt")

    panel.tab.wait_for_end(2)
    panel.shows("ready 2/2")


def test_a_failed_task_is_told_where_nobody_looks_and_a_finished_one_is_not(panel: Panel) -> None:
    panel.tab.run(5)
    panel.shows("1 finished")
    panel.tab.run(4)

    playwright.expect(panel.node.locator(TASKS).first).to_contain_text("no such file")
    playwright.expect(notes(panel)).to_have_count(1)
    playwright.expect(notes(panel)).to_contain_text("fail failed.")
    playwright.expect(panel.tab.page.locator(".jp-mgpu-panel [role=status]").first).to_contain_text(
        re.compile("short is finished|fail failed")
    )


def test_pools_are_among_what_runs_and_are_shut_down_from_there(panel: Panel) -> None:
    page = panel.tab.page
    page.get_by_role("tab", name=re.compile("^Running")).click()
    item = page.get_by_role("treeitem", name=re.compile("^main"))
    playwright.expect(item).to_be_visible()

    item.hover()
    item.locator(".jp-RunningSessions-itemShutdown").click()
    playwright.expect(panel.dialog).to_contain_text("Stop pool main?")
    panel.answer("Stop the pool")

    playwright.expect(item).to_have_count(0)


def test_the_palette_has_every_command(panel: Panel) -> None:
    found = panel.tab.page.evaluate(
        """() => window.jupyterapp.commands.listCommands().filter(id => id.startsWith('mgpu:'))
            .map(id => [id, window.jupyterapp.commands.label(id)])"""
    )

    panel.command("apputils:activate-command-palette")
    panel.tab.page.keyboard.insert_text("GPU pools")

    palette = panel.tab.page.locator(".lm-CommandPalette-itemLabel")
    for name, label in found:
        if name != "mgpu:show-log":  # a rank's button shows it
            words = re.compile(f"^{re.escape(label)}$")
            playwright.expect(palette.filter(has_text=words)).to_be_visible()
    assert len(found) >= 15
    panel.tab.page.keyboard.press("Escape")


def test_the_list_of_tasks_is_saved_as_a_table(panel: Panel) -> None:
    panel.tab.run(5)
    panel.shows("finished")

    with panel.tab.page.expect_download() as saved:
        panel.command("mgpu:export-tasks")

    rows = list(csv.DictReader(io.StringIO(saved.value.path().read_text())))
    assert [(row["name"], row["pool"], row["state"]) for row in rows] == [
        ("short", "main", "finished")
    ]


def test_the_panel_is_whole_wherever_it_is_put(panel: Panel) -> None:
    for area in ("right", "down", "main", "left"):
        panel.tab.page.evaluate(
            """area => {
                const { shell } = window.jupyterapp;
                const panel = [...['left', 'right', 'down', 'main']].flatMap(
                    name => [...shell.widgets(name)]).find(one => one.id === 'jupyter-mgpu-panel');
                shell.add(panel, area);
                shell.activateById(panel.id);
            }""",
            area,
        )

        playwright.expect(panel.rows("rank 0").last).to_be_visible()
        assert panel.overflows() == []


def test_a_server_of_another_version_is_told_with_what_to_do(panel: Panel) -> None:
    page = panel.tab.page

    def from_the_future(route: Any) -> None:
        reply = route.fetch()
        told = {**reply.json(), "api_version": 2, "server_version": "9.1"}
        route.fulfill(response=reply, body=json.dumps(told))

    page.route("**/jupyter-mgpu/hello**", from_the_future)
    page.reload()
    panel.tab.wait_until_ready()
    panel.command("mgpu:open")

    panel.shows("The server part is version 9.1 (messages 2), this page knows messages 1.")
    playwright.expect(panel.node.get_by_role("button", name="Try now")).to_be_visible()
    page.unroute("**/jupyter-mgpu/hello**")
    panel.node.get_by_role("button", name="Try now").click()
    panel.shows("ready 2/2")
