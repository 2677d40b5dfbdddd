"""Live views from a front end's side: a real kernel, real engines, no browser."""

import contextlib
import json
import os
import queue
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from view_states import unpacked

import jupyter_mgpu as mgpu
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.widgets import tasks_source
from jupyter_mgpu.widgets.tasks_source import TaskSource
from jupyter_mgpu.widgets.training_source import FutureTraining
from notebooks import Cell, Notebook, notebook, wait_for_file, wait_until

MIME = "application/vnd.jupyter-mgpu.view.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
TARGET = "jupyter_mgpu.view"


class FrontEnd:
    """What a page knows: displays by their ids, comms by theirs."""

    def __init__(self, nb: Notebook) -> None:
        self._nb = nb
        self.displays: dict[str, dict[str, Any]] = {}
        self.num_updates = 0
        self.opened: dict[str, dict[str, Any]] = {}
        self.messages: list[dict[str, Any]] = []

    def take(self, message: dict[str, Any]) -> None:
        content = message["content"]
        if message["msg_type"] in ("display_data", "update_display_data"):
            display = content["transient"].get("display_id", "")
            self.displays[display] = content["data"]
            self.num_updates += message["msg_type"] == "update_display_data"
        elif message["msg_type"] == "comm_open":
            self.opened[content["comm_id"]] = content["data"]
        elif message["msg_type"] in ("comm_msg", "comm_close"):
            self.messages.append({**message, "comm": content["comm_id"], "data": content["data"]})

    def run(self, code: str, *, has_person: bool = True) -> Cell:
        """Run a cell as JupyterLab does: with somebody who can be asked for input."""
        cell = Cell(self._nb.client.execute(code, allow_stdin=has_person))
        self._nb.wait(cell)
        assert cell.ok, cell.text
        for message in cell.messages:
            self.take(message)
        return cell

    def _send(self, msg_type: str, content: dict[str, Any]) -> None:
        message = self._nb.client.session.msg(msg_type, content)
        self._nb.client.shell_channel.send(message)

    def open_view(self, view_id: str) -> str:
        """Do what our extension does when it draws a view."""
        comm = uuid.uuid4().hex
        content = {"comm_id": comm, "target_name": TARGET, "data": {"id": view_id}}
        self._send("comm_open", content)
        return comm

    def send(self, comm: str, **data: Any) -> None:
        self._send("comm_msg", {"comm_id": comm, "data": data})

    def said(self, comm: str, key: str) -> list[Any]:
        """What a comm has brought under a key."""
        return [m["data"][key] for m in self.messages if m["comm"] == comm and key in m["data"]]

    def wait_for(self, condition: Callable[[], Any], what: str, timeout: float = 60) -> Any:
        deadline = time.monotonic() + timeout
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not come: {str(self.messages[-1:])[:500]}")
            with contextlib.suppress(queue.Empty):
                self.take(self._nb.client.get_iopub_msg(timeout=0.05))
        return found


@pytest.fixture
def page(nb: Notebook) -> Iterator[FrontEnd]:
    nb.check("import time\nfrom IPython.display import display\npool = mgpu.parpool(2)")
    yield FrontEnd(nb)
    nb.check("mgpu.cancel_all()")


def view_of(cell: Cell) -> dict[str, Any]:
    """The last view that a cell has shown, as its state."""
    return dict(unpacked([data[MIME] for data in cell.displays if MIME in data][-1]))


def test_a_pool_at_the_end_of_a_cell_is_a_view_with_html_and_text(page: FrontEnd) -> None:
    (data,) = page.run("pool").displays

    assert {"text/plain", "text/html", MIME, WIDGET} <= set(data)
    assert data[MIME]["kind"] == "pool"
    assert [engine["rank"] for engine in data[MIME]["engines"]] == [0, 1]
    assert "2 engines, ready" in data["text/plain"]


def test_percent_parpool_shows_the_pool_as_a_view(page: FrontEnd) -> None:
    assert view_of(page.run("%parpool"))["kind"] == "pool"


def test_where_no_page_answers_the_output_is_renewed_every_ten_seconds_by_its_display_id(
    page: FrontEnd,
) -> None:
    page.run(
        "from jupyter_mgpu.output.budget import Budget\n"
        "from jupyter_mgpu.output.publisher import capture\n"
        "from jupyter_mgpu.widgets.live_view import LiveView\n"
        "from jupyter_mgpu.widgets.pool_source import PoolSource\n"
        "class Changing(PoolSource):\n"
        "    num_asked = 0\n"
        "    def state(self, limit):\n"
        "        self.num_asked += 1\n"
        "        return {**super().state(limit), 'queued': self.num_asked}"
    )

    cell = page.run(
        "view = LiveView(Changing(pool), capture())\n"
        "view.show(0.0)\n"
        "for tenth in range(600):  # a minute by the view's clock\n"
        "    view.update(tenth / 10, Budget(tenth / 10))"
    )

    (shown,) = [m["content"] for m in cell.messages if m["msg_type"] == "display_data"]
    updates = [m["content"] for m in cell.messages if m["msg_type"] == "update_display_data"]
    # Views of earlier cells may be renewed in this one, too.
    renewed = [update for update in updates if update["transient"] == shown["transient"]]
    assert len(renewed) == 6  # after 2 s, then every 10 s
    assert "2 engines, " in shown["data"]["text/plain"]


def test_the_code_of_the_views_is_sent_once_and_not_with_each_of_them(page: FrontEnd) -> None:
    page.run("pool")
    page.opened.clear()

    page.run("for _ in range(5): display(pool)")

    sizes = [len(json.dumps(data)) for data in page.opened.values()]
    views = [data for data in page.opened.values() if "_esm" in data["state"]]
    assert len(views) == 5
    assert sum(sizes) < 5 * 15_000
    assert len({data["state"]["code"] for data in views}) == 1


def test_a_page_is_sent_the_state_when_it_asks_for_a_view_and_when_it_changes(
    page: FrontEnd,
) -> None:
    state = view_of(page.run("pool"))
    comm = page.open_view(state["id"])
    page.wait_for(lambda: page.said(comm, "state"), "the first state")

    page.run("task = mgpu.parfeval(time.sleep, 60)")

    page.wait_for(lambda: page.said(comm, "state")[-1]["state"] == "busy", "the busy pool")
    assert page.said(comm, "state")[-1]["running"] == 1


def test_a_hidden_page_is_sent_nothing_until_it_is_back(page: FrontEnd) -> None:
    view_id = view_of(page.run("pool"))["id"]
    comm = page.open_view(view_id)
    page.wait_for(lambda: page.said(comm, "state"), "the first state")
    page.send(comm, visible=False)  # it is read beside the cells
    page.run(
        "from jupyter_mgpu.widgets.registry import views\n"
        f"view = views.find({view_id!r})\n"
        "while view._hosts[-1].is_watched(time.monotonic()): time.sleep(0.02)\n"
        "with view._lock: pass  # what was being sent is sent"
    )
    page.run("task = mgpu.parfeval(time.sleep, 60)")
    page.messages.clear()

    page.run("time.sleep(2)")
    assert page.said(comm, "state") == []

    page.send(comm, visible=True)
    page.wait_for(lambda: page.said(comm, "state"), "the state for a page that is back")


def test_a_page_that_does_not_answer_any_more_is_sent_nothing(page: FrontEnd) -> None:
    view_id = view_of(page.run("pool"))["id"]
    gone, here = page.open_view(view_id), page.open_view(view_id)
    page.wait_for(lambda: page.said(gone, "ping") and page.said(here, "state"), "the question")
    page.run(
        "from jupyter_mgpu.widgets.registry import views\n"
        f"hosts = views.find({view_id!r})._hosts\n"
        "later = time.monotonic() + 31"
    )

    assert page.run("[host.is_watched(later) for host in hosts[-2:]]").result == "[False, True]"


def test_a_view_that_nobody_knows_is_gone(page: FrontEnd) -> None:
    comm = page.open_view("never made")

    page.wait_for(lambda: page.said(comm, "gone"), "the answer")


def test_buttons_act_and_tell_how_it_went(page: FrontEnd) -> None:
    page.run("task = mgpu.parfeval(time.sleep, 60)")
    state = view_of(page.run("%tasks --live"))
    comm = page.open_view(state["id"])
    task = next(task for task in state["tasks"] if task["state"] in ("queued", "running"))

    page.send(comm, action="cancel", task=task["id"])
    done = page.wait_for(lambda: page.said(comm, "done"), "the answer")[-1]
    page.send(comm, action="cancel", task="pool/none")
    refused = page.wait_for(lambda: page.said(comm, "done")[1:], "the refusal")[-1]

    assert (done["ok"], done["action"], done["task"]) == (True, "cancel", task["id"])
    assert done["words"] == f"'{task['name']}' was cancelled."
    assert (refused["ok"], refused["words"]) == (False, "The task has ended.")
    assert page.run("task.cancelled()").result == "True"


def test_an_engine_is_interrupted_and_restarted_by_its_view(page: FrontEnd, nb: Notebook) -> None:
    page.run(
        "task = pool.submit_task(time.sleep, (60,), rank=1)\n"
        "while not task.running() or pool.engines[0].task_id: time.sleep(0.02)"
    )
    comm = page.open_view(view_of(page.run("pool"))["id"])

    page.send(comm, action="interrupt", pool="pool", rank=0)
    page.send(comm, action="interrupt", pool="pool", rank=1)
    answers = page.wait_for(lambda: page.said(comm, "done")[1:] and page.said(comm, "done"), "both")
    assert "KeyboardInterrupt" in page.run("print(repr(task.exception()))").stdout
    pids = nb.value("[engine.pid for engine in pool.engines]")
    page.send(comm, action="restart", pool="pool", rank=1)
    page.wait_for(lambda: page.said(comm, "done")[2:], "the restart's answer")

    assert [answer["ok"] for answer in answers[:2]] == [False, True]
    page.run(f"while pool.engines[1].pid in (None, {pids[1]}): time.sleep(0.02)")
    assert nb.value("pool.engines[0].pid") == pids[0]


def test_a_pool_that_has_ended_leaves_html_and_no_widget(page: FrontEnd) -> None:
    page.run("other = mgpu.parpool(1, name='other')\nother")
    before = list(page.displays)

    page.run("other.shutdown()")

    def final() -> dict[str, Any] | None:
        shown = page.displays[before[-1]]
        return shown if shown[MIME]["final"] else None

    bundle = page.wait_for(final, "the last state")
    assert WIDGET not in bundle
    assert bundle[MIME]["notice"] == "The pool has ended: it was shut down."
    assert "The pool has ended: it was shut down." in bundle["text/html"]


def test_a_page_that_comes_late_gets_the_last_state_and_what_to_save(page: FrontEnd) -> None:
    page.run(
        "def work():\n"
        "    while not mgpu.stop_requested(): time.sleep(0.02)\n"
        "    print('the last line')\n"
        "task = mgpu.parfeval(work)"
    )
    view_id = view_of(page.run("task"))["id"]
    page.run("while not task.running(): time.sleep(0.02)\ntask.request_stop()\ntask.result()")

    comm = page.open_view(view_id)

    bundle = page.wait_for(lambda: page.said(comm, "bundle"), "the bundle")[-1]
    assert page.said(comm, "state")[-1]["final"]
    assert "the last line" in bundle["text/html"]
    assert bundle[MIME]["tasks"][0]["state"] == "finished"


def test_a_task_that_has_reported_shows_its_curves_and_show_replays_its_diary(
    page: FrontEnd,
) -> None:
    page.run(
        "def work():\n"
        "    for step in range(2000):\n"
        "        mgpu.report(step=step, loss=1 / (1 + step))\n"
        "    print('that is all')\n"
        "    raise ValueError('at the end\\nwith more')\n"
        "task = mgpu.parfeval(work)\n"
        "mgpu.wait([task])"
    )

    cell = page.run("task.show()")

    state = view_of(cell)
    assert (state["kind"], state["state"]) == ("training", "failed")
    assert state["error"] == "ValueError: at the end"
    (curve,) = state["curves"]
    assert curve["steps"][-1] == 1999
    assert max(curve["values"]) == 1.0
    assert cell.text.count("that is all") == 1  # the view leaves it to the text below
    assert "that is all" in view_of(page.run("display(task)"))["diary"]


def test_a_task_without_curves_is_shown_above_its_diary_which_stands_there_once(
    page: FrontEnd,
) -> None:
    page.run("task = mgpu.parfeval(print, 'hello there')\ntask.result()")

    cell = page.run("task.show()")

    assert view_of(cell)["tasks"][0]["state"] == "finished"
    assert cell.text.count("hello there") == 1
    assert not any("hello there" in data.get("text/html", "") for data in cell.displays)


def test_the_last_step_that_is_shown_is_the_one_a_task_ended_with(
    pool: Pool, tmp_path: Path
) -> None:
    def work() -> None:
        mgpu.report(step=1, loss=1.0)
        wait_for_file(tmp_path / "go")
        mgpu.report(step=2, loss=0.5)

    future = pool.submit(work)
    wait_until(lambda: future.metrics, 60, "the first report")
    source = FutureTraining(future)
    assert source.state(100)["step"] == 1
    (tmp_path / "go").touch()
    future.result(60)

    assert source.state(100)["step"] == 2


def test_a_state_that_was_read_before_a_task_ended_does_not_replace_the_last_one(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    future = pool.submit(wait_for_file, tmp_path / "go")
    source = TaskSource(future)
    has_read, goes_on = threading.Event(), threading.Event()
    read = tasks_source.task_facts

    def read_slowly(*about: Any) -> Any:
        facts = read(*about)
        if not has_read.is_set():
            has_read.set()
            goes_on.wait(60)
        return facts

    monkeypatch.setattr(tasks_source, "task_facts", read_slowly)
    first, second = (threading.Thread(target=source.state, args=(100,)) for _ in range(2))
    first.start()
    assert has_read.wait(60)
    (tmp_path / "go").touch()
    future.result(60)
    second.start()
    second.join(0.5)  # it may wait for the first one, and come to its end only after it
    goes_on.set()
    first.join(60), second.join(60)

    assert source.state(100)["tasks"][0]["state"] == "finished"


def test_trainings_are_compared_and_what_is_no_future_is_refused(
    page: FrontEnd, nb: Notebook
) -> None:
    page.run(
        "def work(start):\n"
        "    for step in range(5): mgpu.report(step=step, loss=start / (1 + step))\n"
        "tasks = [mgpu.parfeval(work, start) for start in (1.0, 2.0)]\n"
        "mgpu.wait(tasks)"
    )

    state = view_of(page.run("mgpu.compare(tasks)"))

    assert state["kind"] == "compare"
    assert [training["curves"][0]["values"][0] for training in state["trainings"]] == [1.0, 2.0]
    assert "returns" in nb.run("mgpu.compare([1])").evalue
    assert "0 futures were given" in nb.run("mgpu.compare([])").evalue


TRAIN = """
import torch; torch.set_num_threads(1)
net, x = torch.nn.Linear(4, 2), torch.randn(64, 4)
y = (x.sum(1) > 0).long()
def fit(where, **more):
    options = mgpu.TrainingOptions(execution_environment=where, max_epochs=3, mini_batch_size=16,
                                   validation=(x, y), plots="training-progress", **more)
    return mgpu.train(net, (x, y), torch.nn.CrossEntropyLoss(), options)
"""


@pytest.mark.parametrize("where", ["cpu", "parallel"])
def test_a_training_is_plotted_instead_of_its_table(page: FrontEnd, where: str) -> None:
    page.run(TRAIN)

    cell = page.run(f"_ = fit({where!r})")

    state = view_of(cell)
    assert (state["kind"], state["final"], state["state"]) == ("training", True, "finished")
    assert state["outcome"] == "all epochs completed"
    assert [curve["name"] for curve in state["curves"]] == ["loss", "validation_loss", "rate"]
    assert (state["step"], state["steps"], state["epoch"], state["epochs"]) == (12, 12, 3, 3)
    assert state["epoch_steps"] == [1, 5, 9]
    assert state["best"]["name"] == "validation_loss"
    assert "iteration" not in cell.text
    assert WIDGET not in cell.displays[-1]


def test_another_kind_of_plot_is_refused(nb: Notebook) -> None:
    cell = nb.run("mgpu.TrainingOptions(plots='all')")

    assert cell.evalue == "plots is 'all', but it may be: 'none', 'training-progress'."


def test_many_views_of_a_pool_cost_one_sampler_and_one_thread(page: FrontEnd) -> None:
    page.run("for _ in range(5): display(pool)\nmgpu.parfeval(time.sleep, 0)")
    page.run("%gpus --live")

    threads = page.run(
        "import threading\nprint(sorted(t.name for t in threading.enumerate()))"
    ).stdout

    assert threads.count("mgpu-views") == 1
    assert threads.count("mgpu-monitor") == 1


def test_views_let_go_of_results_and_end_their_thread_with_the_last_one() -> None:
    with notebook() as fresh:
        fresh.check("%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu\npool = mgpu.parpool(1)")
        fresh.check(
            "import gc, threading, time, weakref\n"
            "task = mgpu.parfeval(bytearray, 10)\n"
            "from IPython.display import display\n"
            "display(task)\n"
            "task.result()\n"
            "gone = weakref.ref(task)\n"
            "del task"
        )
        fresh.check("while gone() is not None: gc.collect(); time.sleep(0.02)")
        fresh.check("display(pool)\npool.shutdown()\ndel pool")

        fresh.check(
            "while any(t.name == 'mgpu-views' for t in threading.enumerate()): time.sleep(0.02)"
        )


WORK = """def work():
    for step in range(50):
        mgpu.report(step=step, loss=1 / (1 + step))
done = mgpu.parfeval(work)
done.result()
done"""


@pytest.fixture(scope="module")
def executed() -> Any:
    """A notebook with views, as nbclient has run it."""
    cells = [
        "%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu\npool = mgpu.parpool(1)",
        "pool",
        "pool\n",
        "task = mgpu.parfeval(print, 'its last line')\ntask",
        WORK,
        "task.result()\npool.shutdown()",
    ]
    node = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(node, timeout=120, kernel_name="python3").execute()
    return node


def test_a_notebook_that_a_program_runs_holds_html_and_no_widgets(executed: Any) -> None:
    shown = [executed.cells[number].outputs[-1].data for number in (1, 2, 3, 4)]

    assert "widgets" not in executed.metadata
    assert not any(WIDGET in data for data in shown)
    assert all(data[MIME]["final"] for data in shown)
    assert "stopped" in shown[0]["text/html"]
    assert "its last line" in shown[2]["text/plain"]
    assert len(nbformat.writes(executed)) < 40_000


def test_a_converted_notebook_shows_tables_and_curves(executed: Any) -> None:
    from nbconvert import HTMLExporter, MarkdownExporter

    page, _ = HTMLExporter().from_notebook_node(executed)
    text, _ = MarkdownExporter().from_notebook_node(executed)

    for shown in (page, text):
        assert "1 engine, stopped" in shown
        assert "loss: 0.02 at step 49; from 1, between 0.02 and 1." in shown
        assert "<path d=" in shown
    assert "model_id" not in page


def test_a_viewer_that_strips_styles_and_drawings_shows_the_numbers(executed: Any) -> None:
    import bleach

    tags = {"table", "thead", "tbody", "tr", "th", "td", "div", "pre"}
    pages = [
        bleach.clean(executed.cells[number].outputs[-1].data["text/html"], tags, {}, strip=True)
        for number in (1, 4)
    ]

    assert "1 engine, stopped" in pages[0]
    assert "<td>CPU</td>" in pages[0]
    assert "loss: 0.02 at step 49; from 1, between 0.02 and 1." in pages[1]
    assert "style" not in "".join(pages)


NO_WIDGETS = """import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("ipywidgets", "anywidget"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""


def test_without_widget_libraries_everything_is_shown_by_the_other_hosts() -> None:
    with notebook() as fresh:
        page = FrontEnd(fresh)
        page.run(NO_WIDGETS)
        page.run("%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu\npool = mgpu.parpool(1)")

        (data,) = page.run("pool").displays
        comm = page.open_view(data[MIME]["id"])

        assert WIDGET not in data
        assert "1 engine, ready" in data["text/plain"]
        page.wait_for(lambda: page.said(comm, "state"), "the state")


def test_in_a_terminal_pools_tasks_and_trainings_are_text(tmp_path: Path) -> None:
    import subprocess

    script = tmp_path / "lines.ipy"
    script.write_text(
        "%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu\npool = mgpu.parpool(1)\n"
        "from IPython.display import display\n"
        "display(pool)\ntask = mgpu.parfeval(print, 'hello')\ntask.result()\ndisplay(task)\n"
        f"%tasks --live\n%gpus --live\n{TRAIN}_ = fit('cpu')\nmgpu.compare([task])\n"
        "pool.shutdown()\n"
    )

    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        stdin=subprocess.DEVNULL,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Pool 'pool': 1 engine" in done.stdout
    assert "<TaskFuture" in done.stdout
    assert "Tasks: 1 finished" in done.stdout
    assert done.stdout.count("Training ended: all epochs completed.") == 1
    assert done.stdout.count("iteration") == 1  # the table stands there once
    assert "Error" not in done.stdout


SLOWLY = """import time, torch
import jupyter_mgpu as mgpu
torch.set_num_threads(1)
def loss(output, target):
    time.sleep(0.02)
    return torch.nn.functional.cross_entropy(output, target)
x, y = torch.randn(64, 4), torch.randint(2, (64,))
options = mgpu.TrainingOptions(execution_environment="cpu", max_epochs=25, mini_batch_size=16)
mgpu.train(torch.nn.Linear(4, 2), (x, y), loss, options)
"""


def test_in_a_terminal_a_training_is_one_line_that_is_written_over(tmp_path: Path) -> None:
    import pty
    import subprocess

    script = tmp_path / "slowly.py"
    script.write_text(SLOWLY)
    terminal, screen = pty.openpty()
    done = subprocess.Popen([sys.executable, str(script)], stdout=screen, stderr=screen)
    os.close(screen)
    printed = b""
    with contextlib.suppress(OSError):  # at its end
        while True:
            printed += os.read(terminal, 4096)
    os.close(terminal)

    bar, table = printed.decode().split("\r\n", 1)
    assert done.wait(60) == 0, printed
    assert bar.count("\r") > 3
    assert "of 100 items" in bar
    assert re.search(r"loss \d\.\d+", bar)
    assert max(len(line) for line in bar.split("\r")) < 80 + len("\x1b[K")
    assert "\rtrain" not in table
    assert table.count("iteration") == 1
