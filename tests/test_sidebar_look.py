"""How the sidebar looks: any number of GPUs, narrow, in every theme; its settings; its history."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gpu_stubs import GpuMachine, gpu, gpus
from lab import CHROMIUM, VIEWPORT, Lab, LabPage, running_browser, running_lab
from sidebar import Panel

from notebooks import wait_until

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("own_runtime_folder"),
]
CELLS = [
    "%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu\npool = mgpu.parpool(2, gpus=[1, 3])",
    """def learn(n, name):
    import time
    for step in range(n):
        mgpu.report(step=step, progress=step / n, loss=n - step, epoch=step // 10)
        time.sleep(0.05)
many = [mgpu.parfeval(learn, 9999, n, name=f"a rather long name {n}") for n in range(40)]""",
]


@pytest.fixture(scope="module")
def machine(gpu_machine: Callable[[str], GpuMachine]) -> GpuMachine:
    return gpu_machine(gpus(16))


@pytest.fixture(scope="module")
def lab(machine: GpuMachine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("lab"), dict(machine)) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running_browser() as driven:
        yield driven


@pytest.fixture(scope="module")
def panel(lab: Lab, browser: Any) -> Iterator[Panel]:
    """A page with a pool and many tasks, of which two run."""
    lab.add("busy.ipynb", CELLS)
    tab = LabPage(browser.new_page(viewport=VIEWPORT), lab.page("lab/tree/busy.ipynb"))
    opened = Panel(tab)
    tab.run(0)
    opened.shows("ready 2/2")
    tab.run(1)
    opened.shows("Background tasks (40)")
    yield opened
    assert [error for error in tab.errors if "mgpu" in error] == []
    tab.page.close()


def busy(index: int, **facts: object) -> str:
    return gpu(index, util=90, used=100_000, power=640, temperature=71, **facts)


@pytest.mark.parametrize("number", [1, 4, 8, 16])
def test_every_number_of_gpus_has_room_at_every_width(
    gpu_machine: Callable[[str], GpuMachine], browser: Any, tmp_path: Path, number: int
) -> None:
    machine = gpu_machine("\n".join(busy(index) for index in range(number)))
    with running_lab(tmp_path, dict(machine)) as lab:
        lab.add("book.ipynb", ["1"])
        tab = LabPage(browser.new_page(viewport=VIEWPORT), lab.page("lab/tree/book.ipynb"))
        panel = Panel(tab)
        rows = panel.node.locator(".mgpu-gpu-rows .mgpu-row")
        playwright.expect(rows).to_have_count(number)

        for width in (250, 300, 420):
            panel.widen(width)
            assert panel.overflows() == []
            # A row that is stale for a moment, on a loaded machine, has words of its own.
            highest = "rows => Math.max(...rows.map(row => row.getBoundingClientRect().height))"
            limit = 24 if number >= 8 else 96
            wait_until(lambda: rows.evaluate_all(highest) <= limit, 60, "low rows")  # noqa: B023
            playwright.expect(rows.first).to_contain_text("90 %")
            playwright.expect(rows.first).to_contain_text(re.compile(r"(98|97\.7).* GiB"))
        tab.page.close()


THEMES = ["JupyterLab Light", "JupyterLab Dark", "JupyterLab Dark High Contrast"]


@pytest.mark.parametrize("theme", THEMES)
def test_nothing_keeps_anybody_out_in_any_theme(panel: Panel, theme: str) -> None:
    panel.widen(300)
    panel.use_theme(theme)
    panel.tab.page.wait_for_function(
        "theme => document.body.dataset.jpThemeName === theme", arg=theme
    )

    assert panel.barriers() == []
    assert panel.barriers(".jp-mgpu-chip") == []


def test_forced_colours_and_reduced_motion_are_kept(panel: Panel) -> None:
    page = panel.tab.page
    page.emulate_media(forced_colors="active", reduced_motion="reduce")
    bar = panel.node.locator(".mgpu-bar-used").first

    highlight = page.evaluate(
        """() => {
            const probe = document.body.appendChild(document.createElement('i'));
            probe.style.cssText = 'color: Highlight; forced-color-adjust: none';
            const { color } = getComputedStyle(probe);
            probe.remove();
            return color;
        }"""
    )
    playwright.expect(bar).to_have_css("background-color", highlight)
    moving = """node => node.getAnimations({ subtree: true }).length
        + [...node.querySelectorAll('.mgpu *')].filter(
            one => !['', '0s', '0'].includes(getComputedStyle(one).transitionDuration)).length"""
    assert panel.node.evaluate(moving) == 0
    page.emulate_media(forced_colors="none", reduced_motion="no-preference")


def test_of_forty_tasks_those_that_are_seen_are_drawn_and_all_can_be_reached(panel: Panel) -> None:
    panel.widen(300)
    rows = panel.node.locator(".mgpu-task-row")
    rows.first.focus()

    for place in range(40):
        focused = panel.node.locator(".mgpu-task-row:focus")
        playwright.expect(focused).to_have_attribute("aria-posinset", str(place + 1))
        assert rows.count() < 30
        panel.tab.page.keyboard.press("ArrowDown")

    playwright.expect(panel.node.locator(".mgpu-task-row:focus")).to_have_attribute(
        "aria-setsize", "40"
    )
    playwright.expect(panel.node.locator(".mgpu-task-row:focus")).to_be_in_viewport()


def test_the_history_is_drawn_enlarged_and_read_as_a_table_and_a_file(
    panel: Panel, machine: GpuMachine
) -> None:
    page = panel.tab.page
    machine.write("\n".join([busy(0), *(gpu(index) for index in range(1, 16))]))
    panel.command("mgpu:open-history")
    history = page.locator(".jp-mgpu-history")
    charts = history.locator(".mgpu-chart")
    playwright.expect(charts).to_have_count(4)
    playwright.expect(charts.first.locator(".mgpu-end")).to_have_count(16)
    slider = charts.first.get_by_role("slider")
    spans = lambda: float(slider.get_attribute("aria-valuemin"))  # noqa: E731 - read again
    wait_until(lambda: spans() < -0.1, 60, "six seconds of readings")
    playwright.expect(charts.first.locator(".mgpu-mark").first).to_have_attribute(
        "title", re.compile("a rather long name [01] started")
    )

    box = slider.bounding_box()
    width = "node => node.ariaValueMax - node.ariaValueMin"
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 50)
    playwright.expect(charts.last.locator(".mgpu-rule")).to_have_attribute("d", re.compile("M"))
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 60)
    page.mouse.up()
    playwright.expect(history.get_by_role("button", name="Show all")).to_be_visible()
    zoomed = slider.evaluate(width)
    slider.dblclick()
    playwright.expect(history.get_by_role("button", name="Show all")).to_be_hidden()
    assert 0 < zoomed < 0.5 * slider.evaluate(width)  # a third of what there was then

    history.get_by_role("button", name="View as table").click()
    playwright.expect(history.get_by_role("table")).to_have_count(4)
    cells = history.get_by_role("table").first.get_by_role("row", name="GPU 0").locator("td")
    playwright.expect(cells.first).to_have_text("90")
    assert panel.barriers(".jp-mgpu-history") == []
    with page.expect_download() as saved:
        history.get_by_role("button", name="Save as CSV").click()
    readings = list(csv.DictReader(io.StringIO(saved.value.path().read_text())))
    assert {row["gpu"] for row in readings} == {f"GPU {index}" for index in range(16)}
    assert "90" in {row["busy_percent"] for row in readings if row["gpu"] == "GPU 0"}
    history.get_by_role("button", name="View as table").click()
    playwright.expect(charts.first).to_be_visible()
    assert panel.barriers(".jp-mgpu-history") == []


def test_settings_choose_the_pace_the_units_the_sections_and_the_alerts(
    gpu_machine: Callable[[str], GpuMachine], browser: Any, tmp_path: Path
) -> None:
    machine = gpu_machine("\n".join([busy(0), gpu(1, used=140_000), gpu(2), gpu(3)]))
    chosen = {
        "interval": 2,
        "sizeUnit": "GB",
        "sections": ["tasks", "gpus"],
        "density": "compact",
        "onlyOurs": True,
        "alerts": "all",
        "statusBar": False,
    }
    settings = tmp_path / "config" / "lab" / "user-settings" / "jupyter-mgpu"
    settings.mkdir(parents=True)
    (settings / "sidebar.jupyterlab-settings").write_text(json.dumps(chosen))
    with running_lab(tmp_path, dict(machine)) as lab:
        lab.add(
            "book.ipynb",
            ["%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu\n%parpool 1 --gpus 2"],
        )
        tab = LabPage(browser.new_page(viewport=VIEWPORT), lab.page("lab/tree/book.ipynb"))
        panel = Panel(tab)

        panel.shows("every 2 s")
        panel.shows("4 GPUs of others are not shown.")
        panel.shows(re.compile(r"\d+\.\d GB"))
        tab.run(0)
        panel.shows("3 GPUs of others are not shown.")
        rows = panel.node.locator(".mgpu-gpu-rows.mgpu-compact .mgpu-row")
        playwright.expect(rows).to_have_count(1)
        playwright.expect(rows).to_contain_text("rank 0")
        playwright.expect(panel.node.locator(".lm-AccordionPanel-title")).to_have_count(2)
        playwright.expect(tab.page.locator(".jp-mgpu-chip")).to_be_hidden()
        tab.cell(0).locator(".cm-content").click()
        tab.page.keyboard.press("Control+a")
        tab.page.keyboard.insert_text("short = mgpu.parfeval(len, 'four', name='short')")
        tab.page.keyboard.press("Control+Enter")
        toast = tab.page.locator(".Toastify__toast", has_text="short is finished.")
        playwright.expect(toast).to_be_visible()  # maybe beside other news
        tab.page.close()


def test_a_full_gpu_is_marked(panel: Panel, machine: GpuMachine) -> None:
    machine.write("\n".join([gpu(0, used=140_000), *(gpu(index) for index in range(1, 16))]))

    row = panel.node.locator(".mgpu-gpu-rows .mgpu-row", has_text="137 GiB")
    playwright.expect(row.locator(".mgpu-glyph").first).to_have_class(re.compile("mgpu-warn"))
    machine.write(gpus(16))
