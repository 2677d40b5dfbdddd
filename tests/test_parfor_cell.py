"""Loops in a notebook: progress, output per rank, Stop."""

import re
from pathlib import Path

from notebooks import Notebook

SLOW = """
import time

def slow(item):
    time.sleep(0.05)
    return item
"""


def bars(cell) -> list[str]:
    """The states of the cell's progress bar, as plain text."""
    return [
        message["content"]["data"]["text/plain"]
        for message in cell.messages
        if message["msg_type"] in ("display_data", "update_display_data")
        and message["content"]["data"].get("text/plain", "").startswith("parfor ")
    ]


def test_the_bar_counts_items_whatever_the_chunks_and_its_last_state_stays(nb: Notebook) -> None:
    nb.check(SLOW)

    cell = nb.check("results = mgpu.parfor(slow, range(40), chunk=4)")

    states = bars(cell)
    assert 2 <= len(states) <= 2 + 5 * cell.seconds
    assert "of 40 items" in states[0]
    assert " left" in states[0]
    assert states[-1].startswith("parfor slow: 100% 40 items")
    assert "<div" in cell.displays[-1]["text/html"]
    assert nb.value("results == list(range(40))")


def test_a_short_loop_shows_no_bar(nb: Notebook) -> None:
    # On a busy machine the loop itself can take longer than a bar waits.
    nb.check("from jupyter_mgpu.output import progress_bar\nquiet_s = progress_bar.QUIET_S")
    nb.check("progress_bar.QUIET_S = 60")

    cell = nb.check("mgpu.parfor(abs, range(-3, 1))")

    nb.check("progress_bar.QUIET_S = quiet_s")
    assert bars(cell) == []
    assert cell.result == "[3, 2, 1, 0]"


def test_an_endless_loop_counts_without_a_total(nb: Notebook) -> None:
    nb.check(SLOW)
    cell = nb.submit("import itertools\nmgpu.parfor(slow, itertools.count())")
    nb.wait_for_output(cell, "parfor slow: ")

    nb.stop()
    nb.wait(cell)
    assert cell.ename == "KeyboardInterrupt"
    assert "%" not in bars(cell)[0]
    assert bars(cell)[-1].startswith("parfor slow: stopped after ")


def test_collected_errors_are_counted_in_the_bar(nb: Notebook) -> None:
    nb.check("import time\n\ndef fail(item):\n    time.sleep(0.05)\n    1 / (item % 2)")

    cell = nb.check("mgpu.parfor(fail, range(30), on_error='collect');")

    assert bars(cell)[-1].endswith("15 failed")


def test_prints_of_items_stand_in_the_cell_apart_for_each_rank(nb: Notebook) -> None:
    cell = nb.check("mgpu.parfor(lambda item: print('item', item), range(30), chunk=1);")

    lanes = [data["text/plain"] for data in cell.displays if "item" in data.get("text/plain", "")]
    assert len(lanes) == 2
    shown = [line for lane in lanes for line in lane.splitlines()]
    assert sorted(line.partition("] item ")[2] for line in shown) == sorted(map(str, range(30)))
    for rank, lane in enumerate(lanes):
        assert all(line.startswith(f"[{rank}] ") for line in lane.splitlines())


def test_the_logs_have_all_that_items_print(nb: Notebook) -> None:
    nb.check("mgpu.parfor(lambda item: print('logged', item), range(5000));")

    pool = "mgpu.current_pool()"
    logs = nb.value(f"[str({pool}.owner.engines[rank].log) for rank in {pool}.ranks]")
    lines = [line for log in logs for line in Path(log).read_text().splitlines()]
    assert sum(line.startswith("logged ") for line in lines) == 5000


def test_a_stop_ends_the_loop_and_keeps_what_was_finished(nb: Notebook) -> None:
    nb.check(SLOW)
    pids = nb.value("[e.pid for e in mgpu.current_pool().engines]")
    cell = nb.submit("mgpu.parfor(slow, range(10_000))")
    nb.wait_for(cell, lambda: re.search(r"([2-9]|\d\d) of 10,000 items", cell.text) is not None)

    nb.stop()
    nb.wait(cell)

    assert cell.ename == "KeyboardInterrupt"
    assert "of 10,000 items were finished" in cell.traceback
    assert bars(cell)[-1].startswith("parfor slow: ")
    assert " stopped after " in bars(cell)[-1]
    nb.check("import sys\nkept = sys.last_value.results")
    assert nb.value("len(kept)") >= 2
    assert nb.value("all(index == value for index, value in kept.items())")
    assert nb.value("mgpu.parfor(abs, range(3))") == [0, 1, 2]
    assert nb.value("[e.pid for e in mgpu.current_pool().engines]") == pids


def test_a_stop_ends_a_loop_in_the_kernel_and_keeps_what_was_finished(nb: Notebook) -> None:
    nb.check(SLOW)
    cell = nb.submit("mgpu.parfor(slow, range(10_000), workers=0)")
    nb.wait_for(cell, lambda: re.search(r"([2-9]|\d\d) of 10,000 items", cell.text) is not None)

    nb.stop()
    nb.wait(cell)

    assert cell.ename == "KeyboardInterrupt"
    assert nb.value("len(__import__('sys').last_value.results) >= 2")


def test_an_error_shows_the_item_and_the_lines_of_the_notebook(nb: Notebook) -> None:
    nb.check("def odd(item):\n    if item == 'seven':\n        raise ValueError('odd')")

    cell = nb.run("mgpu.parfor(odd, ['six', 'seven'])")

    assert cell.ename == "ValueError"
    assert "in item 1 of the loop: 'seven'" in cell.traceback
    assert "raise ValueError('odd')" in cell.traceback
    assert "mgpu.parfor(odd" in cell.traceback


def test_a_loop_in_the_background_shows_its_progress_in_its_own_cell(
    nb: Notebook, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    nb.check(f"""
import pathlib, time

def gated(item):
    while not pathlib.Path({str(go)!r}).exists():
        time.sleep(0.02)
    return item
""")
    nb.check("future = mgpu.parfor(gated, range(40), wait=False)")  # and this cell has ended
    go.touch()

    waited = nb.check("results = future.result()")

    assert nb.value("results == list(range(40))")
    assert bars(waited) == []


def test_a_loop_says_that_it_waits_for_a_free_engine(nb: Notebook, tmp_path) -> None:
    go_on = tmp_path / "go on"
    nb.check(f"""
import pathlib, time
def wait_for():
    while not pathlib.Path({str(go_on)!r}).exists():
        time.sleep(0.005)
tasks = [mgpu.parfeval(wait_for) for _ in range(2)]
""")
    cell = nb.submit("mgpu.parfor(abs, range(3))")
    nb.wait_for_output(cell, "waits for a free engine")

    go_on.touch()
    assert nb.wait(cell).result == "[0, 1, 2]"
    assert "waits" not in bars(cell)[-1]


def test_a_loop_in_the_background_can_be_shown_in_another_cell(nb: Notebook, tmp_path) -> None:
    go_on = tmp_path / "go on"
    nb.check(f"""
import pathlib, time
def talk(item):
    print("before", item, flush=True)
    while not pathlib.Path({str(go_on)!r}).exists():
        time.sleep(0.005)
    print("after", item)
future = mgpu.parfor(talk, range(2), wait=False, name="talking")
""")
    cell = nb.submit("future.show()")
    nb.wait_for_output(cell, "before")
    go_on.touch()
    nb.wait(cell)

    assert all(f"after {item}" in cell.text for item in range(2))
    assert "talking" in nb.check("%tasks").text
    assert "after 1" in nb.check("print(future.diary)").stdout
