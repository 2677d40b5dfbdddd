"""The sidebar of a page in tests: its rows, its buttons, its words."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from lab import VIEWPORT, Lab, LabPage, running_browser, running_lab

from notebooks import wait_until

CELLS = [
    "%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu\npool = mgpu.parpool(2, name='main')",
    """def learn(n):
    import time
    for step in range(n):
        mgpu.report(step=step, loss=n - step)
        if mgpu.stop_requested():
            return step
        time.sleep(0.05)
future = mgpu.parfeval(learn, 100_000, name="learn")""",
    "import time\nprint('busy')\ntime.sleep(600)",
    "waiting = [mgpu.parfeval(learn, 100_000, name=f'wait {n}') for n in range(150)]",
    "def fail():\n    raise ValueError('no such file')\nfailed = mgpu.parfeval(fail, name='fail')",
    "finished = mgpu.parfeval(len, 'four', name='short')",
]
TASKS = ".mgpu-task-row"
POOLS = ".mgpu-row:has(.mgpu-engines)"
OVERFLOWS = """node => [...node.querySelectorAll('.mgpu, .mgpu-row, .mgpu-row-line, .mgpu-buttons')]
    .filter(one => one.getClientRects().length && one.scrollWidth > one.clientWidth + 1)
    .map(one => one.outerHTML.slice(0, 300))"""
WIDEN = """width => {
    const { _hsplitPanel: split } = window.jupyterapp.shell;
    const share = width / split.node.clientWidth;
    split.setRelativeSizes([share, 1 - share, 0]);
}"""
THEME = """async theme => {
    await window.jupyterapp.commands.execute('apputils:change-theme', { theme });
}"""


class Panel:
    """The sidebar of a page."""

    def __init__(self, tab: LabPage) -> None:
        from playwright.sync_api import expect

        self.expect = expect
        self.tab = tab
        self.node = tab.page.locator(".jp-mgpu-panel")
        self.command("mgpu:open")
        expect(self.node).to_be_visible()

    @property
    def dialog(self) -> Any:
        return self.tab.page.get_by_role("dialog")

    def command(self, name: str) -> None:
        self.tab.page.evaluate(f"() => void window.jupyterapp.commands.execute('{name}')")

    def shows(self, text: str | re.Pattern[str]) -> None:
        """Wait for words that can be seen; what is hidden stays in the page."""
        # Titles are written in capitals by the theme.
        self.expect(self.node).to_contain_text(text, use_inner_text=True, ignore_case=True)

    def rows(self, words: str) -> Any:
        return self.node.locator(".mgpu-row", has_text=words)

    def press(self, rows: str, button: str) -> None:
        self.node.locator(rows).first.get_by_role("button", name=button, exact=True).click()

    def answer(self, button: str) -> None:
        self.dialog.get_by_role("button", name=button).click()

    def menu_of(self, row: Any) -> Any:
        """Open the menu of a row."""
        row.click(button="right")
        return self.tab.page.locator(".jp-mgpu-menu")

    def widen(self, width: int) -> None:
        """Give the panel so many pixels; the splitter rounds its shares."""
        self.tab.page.evaluate(WIDEN, width)
        wait_until(lambda: abs(self.node.bounding_box()["width"] - width) < 3, 60, "its width")

    def use_theme(self, name: str) -> None:
        """Change JupyterLab's theme, and wait until it has its colours."""
        page = self.tab.page
        page.evaluate(THEME, name)
        page.wait_for_function("name => document.body.dataset.jpThemeName === name", arg=name)
        # A change while the last one's splash screen goes takes it away twice, an error of its own.
        page.locator("#jupyterlab-splash").wait_for(state="detached")

    def overflows(self) -> list[str]:
        """What is wider than its place."""
        return self.node.evaluate(OVERFLOWS)  # type: ignore[no-any-return]

    def barriers(self, where: str = ".jp-mgpu-panel .mgpu") -> list[tuple[str, str]]:
        """What axe finds serious in a part of the page."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.tab.page, context=where).response["violations"]
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        return [(one["id"], node["failureSummary"]) for one in serious for node in one["nodes"]]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running_browser() as driven:
        yield driven


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("lab"), base_url="/a%40b/") as running:
        yield running


@pytest.fixture
def panel(lab: Lab, browser: Any, request: pytest.FixtureRequest) -> Iterator[Panel]:
    """The panel beside a notebook whose pool has started."""
    name = request.node.name[5:35]
    lab.add(f"{name}.ipynb", CELLS)
    tab = LabPage(
        browser.new_page(viewport=VIEWPORT), lab.page(f"lab/workspaces/{name}/tree/{name}.ipynb")
    )
    opened = Panel(tab)
    opened.shows("No pool yet.")
    tab.run(0)
    opened.shows("ready 2/2")
    yield opened
    assert tab.errors == []
    for session in lab.api("GET", "sessions"):
        lab.api("DELETE", f"sessions/{session['id']}")
    tab.page.close()
