"""What a notebook shows of its engines, against a real kernel: messages, parents, rates, errors."""

import contextlib
import html
import queue
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jupyter_mgpu.output.diary import Diary
from jupyter_mgpu.output.html import lines_to_html
from jupyter_mgpu.output.lane import ranks_text
from jupyter_mgpu.output.screen import Screen
from notebooks import Cell, Notebook, notebook

SETUP = """
import threading, time
from jupyter_mgpu.output.cell_output import CellOutput
from jupyter_mgpu.output import publisher, failures
from jupyter_mgpu.on_engine.failure import describe

def printed(text, dropped=0, name="stdout"):
    return {"op": "output", "name": name, "text": text, "dropped": dropped}

def shown(data, kind="display_data", display_id=None):
    transient = {"display_id": display_id} if display_id else {}
    content = {"data": data, "metadata": {}, "transient": transient}
    return {"op": "display", "kind": kind, "content": content}

def cleared(wait=True):
    return {"op": "display", "kind": "clear_output", "content": {"wait": wait}}

def make(*ranks, **options):
    logs = {rank: f"/logs/rank-{rank}.log" for rank in ranks}
    labels = {rank: f"GPU {rank}" for rank in ranks}
    return CellOutput(ranks, publisher.capture(), log_paths=logs, labels=labels, **options)
"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[Notebook]:
    with notebook() as opened:
        opened.check(SETUP)
        yield opened


def page(cell: Cell) -> list[str]:
    """The plain text of what stands in the cell at the end, without what was blanked."""
    return [text for data in cell.displays if (text := data["text/plain"])]


def readable(data: dict[str, Any]) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", data["text/html"]))


def test_each_rank_has_a_lane_and_its_text_alone(kernel: Notebook) -> None:
    cell = kernel.check(
        """
out = make(0, 1, 2)
out.handle(1, printed("one\\n"))
out.handle(0, printed("zero <b>&\\n"))
out.finish()
"""
    )

    assert page(cell) == ["[0] zero <b>&", "[1] one"]
    switches, lane, _ = cell.displays
    key = re.search(r'<label for="([^"]+)"', lane["text/html"]).group(1)
    assert f'<input type="checkbox" id="{key}"' in switches["text/html"]
    assert f"body:has(#{key}:checked) .{key}{{display:none" in switches["text/html"]
    assert f'class="{key}"' in lane["text/html"]
    assert "rank 0 (GPU 0)" in readable(lane)
    assert "zero <b>&" in readable(lane)
    assert "<script" not in lane["text/html"]


def test_one_rank_is_a_plain_stream_with_figures_in_their_place(kernel: Notebook) -> None:
    cell = kernel.check(
        """
out = make(3)
out.handle(3, printed("before\\n"))
out.handle(3, shown({"text/plain": "figure"}))
out.handle(3, printed("after\\n", name="stderr"))
out.handle(3, shown({"text/plain": "42"}, "execute_result"))
out.finish()
"""
    )

    kinds = [m["msg_type"] for m in cell.messages if m["msg_type"] in ("stream", "display_data")]
    assert kinds == ["stream", "display_data", "stream", "display_data"]
    assert cell.stdout == "before\n"
    assert page(cell) == ["figure", "42"]


def test_a_rank_that_printed_nothing_has_no_lane(kernel: Notebook) -> None:
    cell = kernel.check("out = make(0, 1)\nout.handle(1, printed('line\\n'))\nout.finish()")

    drawn = [readable(data) for data in cell.displays if "<label" in data.get("text/html", "")]
    assert [text.split("(")[0] for text in drawn] == ["rank 1 "]


def test_output_lands_in_the_cell_that_caused_it_while_others_run(kernel: Notebook) -> None:
    first = kernel.check(
        """
out = make(0, 1)
go_on = threading.Event()
def late():
    for number in range(30):
        out.handle(0, printed(f"line {number}\\n"))
        time.sleep(0.05)
        if number == 15:
            go_on.wait(60)
    out.finish()
worker = threading.Thread(target=late)
worker.start()
"""
    )
    second = kernel.submit("time.sleep(0.5); print('second')")
    kernel.wait(second)
    third = kernel.submit("go_on.set(); worker.join(); print('third')")

    arrived = listen(kernel, third)

    displays = [message for _, message in arrived if "display" in message["msg_type"]]
    first.messages += displays
    assert page(first) == ["\n".join(f"[0] line {number}" for number in range(30))]
    assert {m["parent_header"]["msg_id"] for m in displays} == {first.msg_id}
    assert not second.displays


def listen(kernel: Notebook, until: Cell) -> list[tuple[float, dict[str, Any]]]:
    """Read all messages, with the time of each, to the end of a cell that must succeed."""
    begun = time.monotonic()
    arrived = []
    while time.monotonic() < begun + 60:
        with contextlib.suppress(queue.Empty):
            message = kernel.client.get_iopub_msg(timeout=0.1)
            arrived.append((time.monotonic() - begun, message))
            is_own = message["parent_header"].get("msg_id") == until.msg_id
            if is_own and message["content"].get("execution_state") == "idle":
                assert kernel.client.get_shell_msg(timeout=60)["content"]["status"] == "ok"
                return arrived
    raise TimeoutError("the cell did not end")


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_flood_on_all_ranks_stays_below_what_a_browser_can_take(
    kernel: Notebook, ranks: int
) -> None:
    running = kernel.submit(
        f"""
out = make(*range({ranks}))
end = time.monotonic() + 5
while time.monotonic() < end:  # what an engine lets pass: 400 lines a second, 20 messages
    for rank in range({ranks}):
        out.handle(rank, printed(("x" * 160 + "\\n") * 20, dropped=10_000))
    time.sleep(0.05)
for rank in range({ranks}):
    out.handle(rank, printed("the end\\n"))
print("live until here", flush=True)
began_to_finish = time.monotonic()
out.finish()
assert time.monotonic() - began_to_finish < 1
"""
    )
    arrived = listen(kernel, running)
    running.messages += [message for _, message in arrived]
    contents = [str(message["content"]) for _, message in arrived]
    mark = next(n for n, content in enumerate(contents) if "'live until here" in content)

    live = contents[:mark]
    assert len(live) / 5 < 50
    assert sum(map(len, live)) / 5 < 200_000
    updates = [m for m in running.messages if m["msg_type"] == "update_display_data"]
    assert len(updates) >= 5 * ranks  # it stays live: once a second for each rank at least
    assert len(page(running)) == ranks
    for number, text in enumerate(page(running)):
        assert text.endswith(f"[{number}] the end")
        assert f"all of it is in /logs/rank-{number}.log" in text
        assert len(text.splitlines()) <= 202


def test_bars_of_two_ranks_stay_two_lines(kernel: Notebook) -> None:
    cell = kernel.check(
        """
begun = time.monotonic()
out = make(0, 1)
for number in range(51):
    for rank in (0, 1):
        out.handle(rank, printed(f"\\r{number}/50 {'#' * number}", name="stderr"))
    time.sleep(0.01)
for rank in (0, 1):
    out.handle(rank, printed("\\n", name="stderr"))
out.finish()
seconds = time.monotonic() - begun
"""
    )

    assert page(cell) == [f"[{rank}] 50/50 {'#' * 50}" for rank in (0, 1)]
    updates = [m for m in cell.messages if m["msg_type"] == "update_display_data"]
    # Five a second for each, and its end; not one for each of 51 texts.
    assert len(updates) <= 2 * (5 * kernel.value("seconds") + 1)


def test_figures_have_a_header_and_updates_reach_their_own_rank(kernel: Notebook) -> None:
    cell = kernel.check(
        """
out = make(0, 1)
for rank in (0, 1):
    out.handle(rank, shown({"image/png": "AAAA", "text/plain": f"<Figure {rank}>"}, display_id="f"))
out.handle(1, shown({"text/plain": "new"}, "update_display_data", "f"))
out.finish()
"""
    )

    assert page(cell) == ["rank 0 (GPU 0):", "<Figure 0>", "rank 1 (GPU 1):", "new"]
    assert cell.displays[1]["image/png"] == "AAAA"


def test_ranks_stand_in_order_whoever_comes_first_and_later_cells_update_them(
    kernel: Notebook,
) -> None:
    cell = kernel.submit(
        """
out = make(0, 1, 2)
go_on = threading.Event()
for rank in (2, 1):
    out.handle(rank, shown({"text/plain": f"figure {rank}"}, display_id="f"))
    out.handle(rank, printed(f"line {rank}\\n"))
def late():
    go_on.wait(60)
    out.handle(0, shown({"text/plain": "figure 0"}, display_id="f"))
    out.handle(0, printed("line 0\\n"))
    out.finish()
worker = threading.Thread(target=late)
worker.start()
"""
    )
    kernel.wait_for_output(cell, "figure 1")
    kernel.wait_for_output(cell, "[2] line 2")
    again = kernel.submit(
        """
go_on.set()
worker.join()
out = make(0, 1, 2)
for rank in (0, 1, 2):
    out.handle(rank, shown({"text/plain": f"new {rank}"}, "update_display_data", "f"))
out.finish()
"""
    )

    cell.messages += [message for _, message in listen(kernel, again)]

    shown = [text for text in page(cell) if not text.startswith("rank")]
    assert shown == ["new 0", "new 1", "new 2", "[0] line 0", "[1] line 1", "[2] line 2"]


def test_clear_output_of_a_rank_leaves_the_others_alone_and_frames_in_place(
    kernel: Notebook,
) -> None:
    cell = kernel.check(
        """
out = make(0, 1)
out.handle(0, shown({"text/plain": "kept"}))
out.handle(0, printed("kept line\\n"))
for number in range(30):
    out.handle(1, cleared())
    out.handle(1, shown({"text/plain": f"frame {number}"}))
    out.handle(1, printed(f"line {number}\\n"))
    time.sleep(0.02)
out.finish()
"""
    )

    assert sorted(page(cell)) == sorted([
        "rank 0 (GPU 0):", "kept", "[0] kept line", "rank 1 (GPU 1):", "frame 29", "[1] line 29",
    ])  # fmt: skip
    assert len(cell.displays) == 7
    assert not [m for m in cell.messages if m["msg_type"] == "clear_output"]


def test_equal_last_expressions_fold(kernel: Notebook) -> None:
    cell = kernel.check(
        """
out = make(0, 1, 2, 3)
for rank in (3, 0, 1):
    out.handle(rank, shown({"text/plain": "42"}, "execute_result"))
out.handle(2, shown({"text/plain": "43"}, "execute_result"))
out.finish()
"""
    )

    assert page(cell) == ["ranks 0-1, 3: 42", "rank 2 (GPU 2): 43"]


def test_what_was_printed_first_stands_first(kernel: Notebook) -> None:
    cell = kernel.check(
        """
out = make(0, 1)
for rank in (1, 0):
    out.handle(rank, printed("line\\n"))
    out.handle(rank, shown({"text/plain": "42"}, "execute_result"))
out.handle(0, shown({"text/plain": "figure"}))
out.finish()
"""
    )

    expected = ["[0] line", "[1] line", "ranks 0-1: 42", "rank 0 (GPU 0):", "figure"]
    assert page(cell) == expected


def test_the_status_line_comes_and_goes(kernel: Notebook) -> None:
    cell = kernel.submit("out = make(0, 1)\nout.status(\"waiting for rank 1: 'resnet18', 12:31\")")
    kernel.wait_for_output(cell, "resnet18")
    again = kernel.submit(
        """
out.status("")
out.handle(0, printed("started\\n"))
out.finish({1: "ValueError: no"})
"""
    )

    cell.messages += [message for _, message in listen(kernel, again)]

    assert page(cell) == ["[0] started"]


def test_a_lane_says_how_its_rank_ended(kernel: Notebook) -> None:
    cell = kernel.check(
        """
out = make(0, 1)
for rank in (0, 1):
    out.handle(rank, printed("line\\n"))
out.finish({0: "finished", 1: "stopped"})
"""
    )

    assert page(cell) == ["[0] line", "[1] line\n[1] stopped"]


def test_a_rank_that_took_longer_to_stop_says_so_later(kernel: Notebook) -> None:
    cell = kernel.check(
        """
out = make(0, 1)
for rank in (0, 1):
    out.handle(rank, printed("line\\n"))
out.finish({0: "stopping", 1: "stopping"})
out.finish({0: "replaced"})
"""
    )

    assert page(cell) == ["[0] line\n[0] replaced", "[1] line"]


def test_a_late_line_still_reaches_its_lane(kernel: Notebook) -> None:
    first = kernel.check(
        """
out = make(0, 1)
out.handle(0, printed("in time\\n"))
out.finish()
"""
    )
    kernel.submit('out.handle(0, printed("late\\n"))')

    kernel.wait_for(first, lambda: page(first) == ["[0] in time\n[0] late"])


def test_without_ipython_lines_are_printed_as_they_are_finished() -> None:
    code = (
        SETUP
        + """
out = make(0, 1)
out.handle(0, printed("one\\n\\r10%\\r20%"))
out.handle(1, shown({"text/plain": "<Figure>"}))
for rank in (0, 1):
    out.handle(rank, shown({"text/plain": "42"}, "execute_result"))
out.finish({0: "ok", 1: "stopped"})
"""
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    expected = ["[0] one", "[1] <Figure>", "[0] 20%", "ranks 0-1: 42", "[1] stopped"]
    assert ran.stdout.splitlines() == expected, ran.stderr


def test_quiet_shows_nothing(kernel: Notebook) -> None:
    cell = kernel.check("out = make(0, 1, quiet=True)\nout.handle(0, printed('x'))\nout.finish()")

    assert not cell.displays


def test_a_captured_cell_stays_captured(kernel: Notebook) -> None:
    cell = kernel.check(
        """%%capture captured
out = make(0, 1)
out.handle(0, printed("inside\\n"))
out.finish()
"""
    )

    assert not cell.displays
    assert "[0] inside" in kernel.value("captured.stdout")


def test_a_widgets_messages_reach_the_front_end_and_come_back(kernel: Notebook) -> None:
    cell = kernel.check(
        """
heard = []
out = make(0, 1, send=lambda rank, header, frames: heard.append((rank, header, frames)))
content = {"comm_id": "w1", "target_name": "jupyter.widget", "data": {"state": {}}}
out.handle(1, {"op": "comm", "msg_type": "comm_open", "content": content}, [b"buffer"])
"""
    )
    opened = [m for m in cell.messages if m["msg_type"] == "comm_open"]
    message = kernel.client.session.msg("comm_msg", {"comm_id": "w1", "data": {"value": 5}})
    kernel.client.shell_channel.send(message)

    heard = kernel.value("[(rank, h['msg_type'], h['content']['data']) for rank, h, _ in heard]")

    assert opened[0]["buffers"] == [b"buffer"]
    assert opened[0]["content"]["comm_id"] == "w1"
    assert heard == [(1, "comm_msg", {"value": 5})]


# --- errors ----------------------------------------------------------------------------

RAISING = """
from jupyter_mgpu import packing
from jupyter_mgpu.packing import pack_exception

def remote(function, rank, aborted=False, pack=True):
    try:
        function()
    except BaseException as error:
        record = describe(error)
        record["aborted"] = aborted
        frames = (pack_exception(error) or []) if pack else []
    return failures.rebuild(record, frames, rank, f"GPU {rank + 2}")

def bad():
    values = {}
    raise ValueError("no such luck")

def gone():
    raise ConnectionError("reset by peer")
"""


@pytest.fixture(scope="module")
def failing(kernel: Notebook) -> Notebook:
    kernel.check(RAISING)
    return kernel


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_remote_error_keeps_its_type_and_notes_rank_and_device(failing: Notebook) -> None:
    cell = failing.check(
        """
try:
    raise remote(bad, 1)
except ValueError as error:
    print(type(error).__name__, error, *error.__notes__, sep="\\n")
"""
    )

    assert cell.stdout.startswith(
        "ValueError\nno such luck\non rank 1 (GPU 3)\nRemote traceback:\n"
    )
    assert 'raise ValueError("no such luck")' in cell.stdout


def test_an_error_that_cannot_be_rebuilt_says_everything(failing: Notebook) -> None:
    cell = failing.run("raise remote(bad, 1, pack=False)")

    assert cell.ename == "RemoteError"
    assert cell.evalue == "ValueError: no such luck"
    assert 'raise ValueError("no such luck")' in plain(cell.traceback)


def test_the_notebook_shows_its_own_lines_and_none_of_ours(failing: Notebook) -> None:
    cell = failing.run("answer = 1\nraise remote(bad, 1)")

    text = plain(cell.traceback)
    assert cell.ename == "ValueError"
    assert text.startswith("ValueError on rank 1 (GPU 3)\n")
    assert re.search(
        r'Cell In\[\d+\], line \d+, in bad\n    raise ValueError\("no such luck"\)', text
    )
    assert "--> raise remote(bad, 1)" in text
    assert "jupyter_mgpu" not in text
    assert len(text.splitlines()) < 15


def test_only_the_newest_way_of_an_exception_is_shown(failing: Notebook) -> None:
    failing.check("kept = remote(bad, 1)")
    for _ in range(3):
        cell = failing.run("raise kept")

    assert plain(cell.traceback).count("--> ") == 1


def test_an_error_of_ours_is_drawn_without_our_lines(failing: Notebook) -> None:
    cell = failing.run(
        """
%load_ext jupyter_mgpu
from jupyter_mgpu.errors import EngineDiedError
errors = {0: remote(gone, 0, aborted=True), 1: EngineDiedError("killed", rank=1, exit_code=-9)}
def call():
    raise failures.merge(errors, 1)
call()
"""
    )

    lines = plain(cell.traceback).splitlines()
    assert lines[:2] == ["EngineDiedError", "killed"]
    assert "rank 0 (GPU 2): aborted" in plain(cell.traceback)
    assert lines[-1] == "--> raise failures.merge(errors, 1)"
    assert "jupyter_mgpu/" not in cell.traceback


def test_errors_of_several_ranks_merge_into_one(failing: Notebook) -> None:
    cell = failing.run(
        """
errors = {
    0: remote(gone, 0, aborted=True),
    1: remote(bad, 1),
    2: remote(bad, 2),
    3: remote(lambda: [][5], 3),
}
raise failures.merge(errors, 1)
"""
    )

    text = plain(cell.traceback)
    assert cell.ename == "ValueError"
    assert text.startswith("ValueError on ranks 1-2\n")
    assert text.count("no such luck") == 2  # the line of code and the message
    own = text.index("rank 3 (GPU 5): IndexError: list index out of range")
    assert own < text.index('rank 0 (GPU 2): aborted in raise ConnectionError("reset by peer") (')


def test_the_cause_comes_before_what_our_abort_did(failing: Notebook) -> None:
    cell = failing.run(
        """
errors = {0: remote(gone, 0, aborted=True), 1: remote(bad, 1)}
raise failures.merge(errors, 0)
"""
    )

    assert cell.ename == "ValueError"


def test_a_rebuilt_error_can_be_pickled_and_raised_again(failing: Notebook) -> None:
    value = failing.value(
        "(lambda e: (type(e).__name__, str(e)))(__import__('pickle').loads("
        "__import__('pickle').dumps(remote(bad, 1))))"
    )

    assert value == ("ValueError", "no such luck")


# --- text ------------------------------------------------------------------------------


def test_a_screen_understands_bars() -> None:
    screen = Screen(10)

    screen.feed("start\n\r 10%|#   |\r 20%|##  |")
    screen.feed("\n\rinner 1\x1b[A\n\rinner 2\x1b[A\r 30%|### |")

    assert screen.lines() == ["start", " 30%|### |", "inner 2"]


def test_a_screen_is_bounded_in_lines_and_in_one_line() -> None:
    screen = Screen(100)

    screen.feed("".join(f"{number}\n" for number in range(1000)) + "y" * 1_000_000)

    assert len(screen.lines()) <= 101
    assert screen.dropped >= 899
    assert len(screen.text()) < 20_000


def test_colours_become_html_and_nothing_else_does() -> None:
    text = lines_to_html(["\x1b[31m<i>red</i>\x1b[0m plain \x1b[1;38;2;1;2;3mdeep", "still\x1b[m."])

    assert "<i>" not in text
    assert "&lt;i&gt;red" in text
    assert "plain" in text.split("</span>")[1]
    assert "#010203" in text
    assert "\x1b" not in text
    assert text.endswith("still</span>.\n")


def test_text_on_a_coloured_ground_can_be_read() -> None:
    lines = ["\x1b[30;43mcall\x1b[0m", "\x1b[97;41mbad\x1b[0m", "\x1b[43mx"]
    black, white, plain = lines_to_html(lines).splitlines()

    assert "color:#000" in black
    assert "color:#fff" in white
    assert "color:#000" in plain


def test_a_diary_keeps_the_end_and_counts_the_rest() -> None:
    diary = Diary()

    for number in range(5000):
        diary.write(f"line {number}\n")
    diary.write("\r50%\r100%", dropped=7)

    assert diary.text().splitlines()[-2:] == ["line 4999", "100%"]
    assert diary.dropped == 7 + 5001 - 2001


def test_a_diary_can_be_followed_to_its_end() -> None:
    import threading

    diary = Diary()
    diary.write("first\n")
    heard: list[str] = []
    follower = threading.Thread(target=lambda: heard.extend(diary.follow()))
    follower.start()

    for number in range(100):
        diary.write(f"{number}\n")
    diary.close()
    follower.join(timeout=60)

    assert "".join(heard) == "first\n" + "".join(f"{n}\n" for n in range(100))


def test_ranks_are_named_as_people_do() -> None:
    assert ranks_text([2]) == "rank 2"
    assert ranks_text([3, 0, 1, 2, 5]) == "ranks 0-3, 5"
