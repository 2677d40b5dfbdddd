"""Output of tasks, captured in a real IPython kernel: its streams, its shell, real descriptors."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_mgpu.output.screen import Screen
from notebooks import Notebook, notebook, wait_until

INSTALL = """
import base64, json, os, subprocess, sys, threading, time, warnings
from jupyter_mgpu.on_engine.streams import TaskOutput

sent = []
log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
output = TaskOutput(lambda header, frames: sent.append((time.monotonic(), header)), log, 1)
# Not now: IPython wraps the streams while a cell runs, and unwraps them at its end.
import asyncio
asyncio.get_event_loop().call_later(0.05, output.install, get_ipython())

def wait_for(condition, timeout=60):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, sent[-3:]
        time.sleep(0.001)

def text(task):
    return "".join(h["text"] for _, h in sent if h["op"] == "output" and h["task"] == task)
"""

COLLECT = """
with open({path!r}, "w") as file:
    json.dump([{{"at": at, **header}} for at, header in sent], file)
sent.clear()
"""


class Engine:
    """A kernel whose cells can run as tasks."""

    def __init__(self, opened: Notebook, folder: Path) -> None:
        self.notebook = opened
        self.log = folder / "rank-1.log"
        self._messages = folder / "messages.json"
        opened.check(INSTALL.format(log=str(self.log)))
        wait_until(lambda: opened.value("output._thread.is_alive()"), 60, "the hooks")

    def run(self, code: str, task: str = "t", after: str = "") -> list[dict[str, Any]]:
        """Run code as a task; returns what it sent."""
        body = "\n".join(f"    {line}" for line in code.strip().splitlines())
        self.notebook.check(
            f"output.begin({task!r})\ntry:\n{body}\nfinally:\n"
            f"    output.end({task!r})\n{after}\n" + COLLECT.format(path=str(self._messages))
        )
        return list(json.loads(self._messages.read_text()))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with notebook() as opened:
        yield Engine(opened, tmp_path_factory.mktemp("engine"))


def text_of(messages: list[dict[str, Any]]) -> str:
    return "".join(m["text"] for m in messages if m["op"] == "output")


def displays(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [m for m in messages if m["op"] == "display"]


def test_lines_of_python_c_code_and_child_processes_arrive_in_order(engine: Engine) -> None:
    messages = engine.run(
        """
print("one")
os.write(1, b"two\\n")
sys.stderr.write("three\\n")
os.system("echo four")
subprocess.run(["sh", "-c", "echo five >&2"])
subprocess.run(["echo", "six"], stdout=sys.stdout)
print("seven")
"""
    )

    assert text_of(messages).split() == ["one", "two", "three", "four", "five", "six", "seven"]
    assert {m["rank"] for m in messages} == {1}
    assert "four\nfive\nsix\nseven\n" in engine.log.read_text()


def test_output_of_a_forked_child_belongs_to_the_task(engine: Engine) -> None:
    messages = engine.run(
        """
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=print, args=("from the child",))
child.start()
child.join()
"""
    )

    assert text_of(messages) == "from the child\n"


def test_the_first_line_waits_for_no_tick(engine: Engine) -> None:
    messages = engine.run(
        """
from jupyter_mgpu.on_engine import backlog
tick, backlog.TICK_S = backlog.TICK_S, 600
try:
    print("first")
    wait_for(lambda: text("first"))
    print("second")
finally:
    backlog.TICK_S = tick
""",
        task="first",
    )

    assert [m["text"] for m in messages] == ["first\n", "second\n"]


def test_many_lines_leave_in_batches(engine: Engine) -> None:
    messages = engine.run(
        """
end = time.monotonic() + 1.0
while time.monotonic() < end:
    print("line")
    time.sleep(0.005)
"""
    )

    assert 1 < sum(m["op"] == "output" for m in messages) <= 24


def test_a_thread_that_outlives_its_task_still_prints_for_it(engine: Engine) -> None:
    messages = engine.run(
        """
release = threading.Event()
def late():
    release.wait(10)
    print("late")
worker = threading.Thread(target=late)
worker.start()
""",
        task="old",
        after="""
output.begin("new")
release.set()
worker.join()
print("new")
output.end("new")
""",
    )

    late = [m for m in messages if m["op"] == "output" and "late" in m["text"]]
    new = [m for m in messages if m["op"] == "output" and "new" in m["text"]]
    assert [m["task"] for m in late] == ["old"]
    assert [m["task"] for m in new] == ["new"]


def test_output_outside_of_tasks_takes_the_kernels_own_path(engine: Engine) -> None:
    client, shown = engine.notebook.client, ""
    client.execute("print('plain'); os.system('echo child')")
    while "child" not in shown:  # of whatever cell: ipykernel 6 takes that which started the thread
        shown += client.get_iopub_msg(timeout=30)["content"].get("text", "")
    messages = engine.run("pass")

    assert "plain" in shown
    assert text_of(messages) == ""
    assert "plain\nchild\n" in engine.log.read_text()


def test_a_flood_neither_blocks_nor_grows_and_its_newest_lines_pass(engine: Engine) -> None:
    messages = engine.run(
        """
import resource
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
end, count = time.monotonic() + 3, 0
while time.monotonic() < end:
    count += 1
    print(count, "x" * 100)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
sent.append((0, {"op": "mark", "count": count, "grown_kib": grown}))
"""
    )

    mark = next(m for m in messages if m["op"] == "mark")
    texts = [m for m in messages if m["op"] == "output"]
    live, last = texts[:-1], texts[-1]
    lines = text_of(messages).splitlines()
    assert mark["count"] > 5_000
    assert lines[-1].split()[0] == str(mark["count"])
    assert len(lines) + sum(m["dropped"] for m in texts) == mark["count"]
    assert sum(m["text"].count("\n") for m in live) <= 400 * 4.5
    assert len(texts) <= 20 * 4.5
    assert last["text"].count("\n") <= 2_000
    assert mark["grown_kib"] < 20_000
    assert f"\n{mark['count'] // 2} x" in engine.log.read_text()


def test_much_on_the_descriptors_and_many_warnings_do_not_block(engine: Engine) -> None:
    messages = engine.run(
        """
os.write(2, b"y" * 10**6)
os.write(2, b"\\n")
for number in range(10_000):
    warnings.warn(f"warning {number}", stacklevel=1)
"""
    )

    assert "warning 9999" in text_of(messages)
    assert sum(m.get("dropped", 0) for m in messages) > 10_000
    assert len(text_of(messages)) < 600_000


def test_bars_collapse_to_their_last_state(engine: Engine) -> None:
    messages = engine.run(
        """
for number in range(50_000):
    sys.stdout.write(f"\\rstep {number}")
print()
"""
    )

    text = text_of(messages)
    assert text.endswith("step 49999\n")
    assert text.count("step") < 500


def test_tqdm_auto_draws_text_bars(engine: Engine) -> None:
    messages = engine.run(
        """
from tqdm.auto import tqdm
for _ in tqdm(range(50)):
    time.sleep(0.002)
"""
    )

    assert not displays(messages)
    assert "50/50" in text_of(messages)


def test_bars_below_each_other_end_as_they_do_in_a_terminal(engine: Engine) -> None:
    messages = engine.run(
        """
from tqdm import tqdm
for _ in tqdm(range(3), desc="outer"):
    for _ in tqdm(range(20), desc="inner", leave=False):
        time.sleep(0.005)
"""
    )

    screen = Screen(100)
    screen.feed(text_of(messages))
    lines = [line for line in screen.lines() if line.strip()]
    assert len(lines) == 1
    assert lines[0].startswith("outer: 100%")


def test_displays_keep_their_place_among_the_lines(engine: Engine) -> None:
    messages = engine.run(
        """
from IPython.display import HTML, Image, clear_output, display
print("before")
handle = display(HTML("<b>bold</b>"), display_id="mine")
display(Image(data=b"\\x89PNG", format="png"))
print("after")
handle.update(HTML("<i>new</i>"))
sys.displayhook(6 * 7)
"""
    )

    # An update takes the place of what it updates, if that has not been sent yet.
    updates = [m for m in messages if m.get("kind") == "update_display_data"]
    kinds = [m.get("kind", m["op"]) for m in messages if m not in updates]
    assert kinds == ["output", "display_data", "display_data", "output", "execute_result"]
    bold, image = displays(messages)[:2]
    last = (updates or [bold])[-1]
    assert last["content"]["data"]["text/html"] == "<i>new</i>"
    assert bold["content"]["transient"] == last["content"]["transient"] == {"display_id": "mine"}
    assert image["content"]["data"]["image/png"].strip() == "iVBORw=="
    assert displays(messages)[-1]["content"]["data"] == {"text/plain": "42"}


def test_clear_output_drops_what_nobody_has_seen(engine: Engine) -> None:
    messages = engine.run(
        """
from IPython.display import clear_output, display
for number in range(200):
    clear_output(wait=True)
    print("frame", number)
"""
    )

    assert messages[-2]["kind"] == "clear_output"
    assert messages[-1]["text"] == "frame 199\n"
    assert len(messages) < 100


def test_figures_are_shown_headless_by_show_and_at_the_end(engine: Engine) -> None:
    messages = engine.run(
        """
import matplotlib.pyplot as plt
plt.plot([1, 2])
plt.show()
plt.plot([3, 4])
output.flush_figures()
"""
    )

    figures = [m["content"]["data"] for m in displays(messages)]
    assert len(figures) == 2
    assert all(data["image/png"].startswith("iVBOR") for data in figures)


def test_two_engines_may_import_matplotlib_at_once(tmp_path: Path) -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1])\nplt.show()\n"
    environment = {"MPLCONFIGDIR": str(tmp_path)}

    with notebook(environment) as first, notebook(environment) as second:
        cells = [opened.submit(code) for opened in (first, second)]
        for opened, cell in zip((first, second), cells, strict=True):
            opened.wait(cell)

    assert all(cell.ok for cell in cells)
    assert all("image/png" in cell.displays[-1] for cell in cells)


def test_input_getpass_and_breakpoint_say_that_nobody_can_answer(engine: Engine) -> None:
    # As a callback, because ipykernel puts its own input() in while it runs a request.
    engine.notebook.check(
        """
def ask_all():
    import builtins, getpass
    output.begin("asks")
    for name, ask in (("input", input), ("getpass", getpass.getpass), ("breakpoint", breakpoint)):
        try:
            ask()
        except RuntimeError as error:
            print(error)
    output.end("asks")

asyncio.get_event_loop().call_later(0.05, ask_all)
"""
    )
    wait_until(lambda: engine.notebook.value("text('asks').count('rank 1')") == 3, 60, "3 answers")

    lines = text_of(engine.run("pass")).splitlines()
    assert [line.split("()")[0] for line in lines] == ["input", "getpass", "breakpoint"]


def test_a_widget_of_a_task_is_relayed_and_hears_back(engine: Engine) -> None:
    messages = engine.run(
        """
import ipywidgets
slider = ipywidgets.IntSlider(value=3)
values = []
from IPython.display import display
display(slider)
for number in range(1000):
    slider.value = number % 100
slider.observe(lambda change: (values.append(change["new"]), print("heard")), "value")
""",
        after="""
content = {"comm_id": slider.comm.comm_id,
           "data": {"method": "update", "state": {"value": 55}, "buffer_paths": []}}
output.on_comm({"op": "comm", "msg_type": "comm_msg", "content": content}, [])
assert slider.value == 55 and values == [55]
wait_for(lambda: text("t") == "heard\\n")
""",
    )

    opened = [m for m in messages if m["op"] == "comm" and m["msg_type"] == "comm_open"]
    shown = displays(messages)[0]["content"]["data"]
    model = shown["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert model in [m["content"]["comm_id"] for m in opened]
    assert messages.index(displays(messages)[0]) > messages.index(opened[-1])
    assert len(messages) < 200


def test_errors_of_a_formatter_are_shown_in_the_task(engine: Engine) -> None:
    messages = engine.run(
        """
class Odd:
    def __repr__(self):
        raise ZeroDivisionError("odd")
sys.displayhook(Odd())
"""
    )

    assert "ZeroDivisionError" in text_of(messages)
