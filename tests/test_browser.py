"""The product in JupyterLab, as a user sees it: real clicks in headless Chromium."""

from collections.abc import Iterator
from typing import Any

import pytest
from lab import CHROMIUM, Lab, LabPage, running_browser, running_lab

from notebooks import wait_until

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.timeout(300),
]

CELLS = [
    "%load_ext jupyter_mgpu\n%parpool 2",
    """%%spmd
import time
import ipywidgets as w
button, label = w.Button(description=f"press {rank}"), w.Label("not yet")
button.on_click(lambda _: setattr(label, "value", f"pressed on rank {rank}"))
w.HBox([button, label])""",
    """%%spmd
from pathlib import Path
for number in range(341):
    print("line", number)
    while number == 310 and not Path("go on").exists():
        time.sleep(0.05)
    time.sleep(0.05 if number > 300 else 0)
time.sleep(600)""",
    "print('the kernel', 'goes on')",
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture(scope="module")
def page(lab: Lab) -> Iterator[LabPage]:
    """The notebook, with its pool started."""
    with running_browser() as browser:
        lab.add("book.ipynb", CELLS)
        tab = browser.new_page(viewport={"width": 1200, "height": 2000})
        opened = LabPage(tab, lab.url("book.ipynb"))
        opened.run_to_end(0)
        yield opened


def test_a_button_of_an_engine_is_pressed_and_shows_what_its_rank_did(page: LabPage) -> None:
    output = page.run(1)
    output.get_by_role("button", name="press 1").click()

    playwright.expect(output.get_by_text("pressed on rank 1")).to_be_visible()
    playwright.expect(output.get_by_text("not yet")).to_have_count(1)


def test_a_lane_shows_its_newest_line_stays_folded_and_stop_ends_the_cell(
    page: LabPage, lab: Lab
) -> None:
    output = page.run(2)
    lanes = output.locator("pre")
    playwright.expect(lanes.first).to_contain_text("line 310")
    # It scrolls a moment after its text has come.
    wait_until(lambda: _is_scrolled_to_its_end(lanes.first), 60, "the lane's end")

    output.get_by_text("rank 0").click()
    playwright.expect(lanes.first).to_be_hidden()
    (lab.folder / "go on").touch()
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
