"""Live views in JupyterLab, by both hosts: real kernels, real clicks in headless Chromium."""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gpu_stubs import gpu
from lab import CHROMIUM, TIMEOUT_MS, Lab, LabPage, running_browser, running_lab

from notebooks import wait_until

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.timeout(300),
]
EXTENSION = "jupyter-mgpu"
VIEW = ".mgpu"
WIDGET = "application/vnd.jupyter.widget-view+json"
VIEWS = Path(__file__).parents[1] / "jupyter_mgpu" / "widgets" / "views"
SETUP = """%load_ext jupyter_mgpu
import pathlib, time
import jupyter_mgpu as mgpu
here = pathlib.Path().resolve()
def wait_for(name):
    while not (here / name).exists():
        time.sleep(0.02)
def count(name):
    value = 0
    while not (here / name).exists() and not mgpu.stop_requested():
        value += 1
        mgpu.report(step=value, value=value)
        time.sleep(0.02)
    return value
pool = mgpu.parpool(2)"""
IS_WATCHED = """from jupyter_mgpu.widgets.registry import views
def is_watched():
    now = time.monotonic()
    return any(host.is_watched(now) for view in views._live.values() for host in view._hosts)
while is_watched():
    time.sleep(0.02)
for view in views._live.values():
    with view._lock:  # what was being sent is sent
        pass"""
COUNTED = """task = mgpu.parfeval(count, 'x')
while not task.running():
    time.sleep(0.02)
%tasks --live"""
VALUE = re.compile(r"value (\d+)")


def is_installed() -> bool:
    from jupyter_core.paths import jupyter_path

    return any(
        (Path(path) / EXTENSION / "package.json").exists() for path in jupyter_path("labextensions")
    )


@pytest.fixture(scope="module", params=["widget", "extension"])
def host(request: pytest.FixtureRequest) -> str:
    """What draws the views: the widget, or our extension's MIME type."""
    if request.param == "extension" and not is_installed():
        pytest.skip("the JupyterLab extension is not installed")
    return request.param


@pytest.fixture(scope="module")
def lab(host: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    if host == "widget":
        disable_server_part(folder)
    with running_lab(folder, disabled=[EXTENSION] if host == "widget" else []) as running:
        yield running


def disable_server_part(folder: Path) -> None:
    """Let a Jupyter have nothing of ours, as where the kernel lives in another environment."""
    settings = folder / "config" / "jupyter_server_config.d"
    settings.mkdir(parents=True)
    off = {"ServerApp": {"jpserver_extensions": {"jupyter_mgpu": False}}}
    (settings / "jupyter_mgpu.json").write_text(json.dumps(off))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running_browser() as running:
        yield running


@pytest.fixture
def open_notebook(lab: Lab, browser: Any) -> Iterator[Any]:
    """Open a notebook with some cells in a new page; its kernel ends with the test."""
    contexts = []

    def open_page(name: str, cells: list[str] | None = None) -> LabPage:
        if cells is not None:
            lab.add(name, [SETUP, *cells])
        contexts.append(browser.new_context(viewport={"width": 1200, "height": 1600}))
        return LabPage(contexts[-1].new_page(), lab.url(name))

    yield open_page
    for context in contexts:
        context.pages[0].evaluate(
            "() => window.jupyterapp.serviceManager.sessions.shutdownAll().catch(() => null)"
        )
        context.close()


def value_of(view: Any) -> int:
    found = VALUE.search(view.inner_text())
    return int(found[1]) if found else 0


def is_busy(page: LabPage, number: int) -> bool:
    return "[*]" in page.cell(number).locator(".jp-InputPrompt").inner_text()


def test_a_view_moves_while_a_cell_runs(lab: Lab, open_notebook: Any) -> None:
    page = open_notebook(
        "moves.ipynb", ["task = mgpu.parfeval(count, 'end')\n%tasks --live", "wait_for('go')"]
    )
    page.run_to_end(0)
    view = page.run_to_end(1).locator(VIEW)
    page.run(2)
    before = value_of(view)

    wait_until(lambda: value_of(view) > before + 10, 60, "the view's news")

    assert is_busy(page, 2)
    (lab.folder / "go").touch()
    page.wait_for_end(2)
    assert page.errors == []


def test_override_of_reply_subshell_for_lets_buttons_work_while_a_cell_runs(
    lab: Lab, open_notebook: Any
) -> None:
    page = open_notebook(
        "cancel.ipynb",
        [
            "task = mgpu.parfeval(count, 'never')\n%tasks --live",
            "wait_for('go2')",
            "task.cancelled()",
        ],
    )
    page.run_to_end(0)
    view = page.run_to_end(1).locator(VIEW)
    playwright.expect(view).to_contain_text("running")
    page.run(2)

    view.get_by_role("button", name="Cancel…").first.click()
    view.get_by_role("button", name="Cancel the task").click()

    playwright.expect(page.output(1)).to_contain_text("cancelled")
    assert is_busy(page, 2)
    (lab.folder / "go2").touch()
    page.wait_for_end(2)
    playwright.expect(page.run_to_end(3)).to_contain_text("True")


def test_a_pool_is_stopped_while_a_cell_runs_and_leaves_its_last_state(
    lab: Lab, open_notebook: Any
) -> None:
    page = open_notebook("stop.ipynb", ["pool", "wait_for('go3')", "pool.is_open"])
    page.run_to_end(0)
    view = page.run_to_end(1).locator(VIEW)
    page.run(2)

    view.get_by_role("button", name="Stop…").click()
    view.get_by_role("button", name="Stop the pool").click()

    playwright.expect(page.output(1)).to_contain_text("stopped")
    playwright.expect(page.output(1).get_by_role("button", name="Stop…")).to_have_count(0)
    assert is_busy(page, 2)
    (lab.folder / "go3").touch()
    page.wait_for_end(2)
    playwright.expect(page.run_to_end(3)).to_contain_text("False")
    saved = saved_outputs(page, lab.folder / "stop.ipynb", 1, has='"final": true')
    assert WIDGET not in saved
    assert "stopped" in "".join(saved["text/html"])


def saved_outputs(page: LabPage, path: Path, cell: int, has: str) -> dict[str, Any]:
    """Save until a cell's last output in the file holds some text; returns its MIME bundle.

    The kernel may send it a moment after the cell has ended.
    """
    last: list[dict[str, Any]] = []

    def is_saved() -> bool:
        page.command("docmanager:save")
        with contextlib.suppress(json.JSONDecodeError):  # JupyterLab may save it by itself just now
            last[:] = json.loads(path.read_text())["cells"][cell]["outputs"][-1:]
        return has in json.dumps(last)

    wait_until(is_saved, 60, f"{has!r} in the saved notebook")
    return last[0]["data"]


def test_a_page_that_is_loaded_again_shows_the_view_live(lab: Lab, open_notebook: Any) -> None:
    page = open_notebook("reload.ipynb", ["task = mgpu.parfeval(count, 'never')\n%tasks --live"])
    page.run_to_end(0)
    page.run_to_end(1)
    saved_outputs(page, lab.folder / "reload.ipynb", 1, has="text/html")

    page.reload()

    view = page.output(1).locator(VIEW)
    playwright.expect(view).to_contain_text(VALUE)
    before = value_of(view)
    wait_until(lambda: value_of(view) > before + 10, 60, "the view's news")
    view.get_by_role("button", name="Cancel…").first.click()
    view.get_by_role("button", name="Cancel the task").click()
    playwright.expect(page.output(1)).to_contain_text("cancelled")


NUM_HOSTS = """from jupyter_mgpu.widgets.registry import views
print("hosts", sum(len(view._hosts) for view in views._live.values()))"""


def test_a_view_that_is_scrolled_out_and_back_moves_on_and_asks_only_once(
    host: str, browser: Any, tmp_path: Path
) -> None:
    settings = tmp_path.joinpath(
        "config", "lab", "user-settings", "@jupyterlab", "notebook-extension"
    )
    settings.mkdir(parents=True)
    (settings / "tracker.jupyterlab-settings").write_text('{"windowingMode": "full"}')
    disabled = [EXTENSION] if host == "widget" else []
    cells = [SETUP, "task = mgpu.parfeval(count, 'x')\n%tasks --live", NUM_HOSTS]
    with running_lab(tmp_path, disabled=disabled) as lab:
        lab.add("long.ipynb", [*cells, *["'a\\n' * 40"] * 60])
        page = LabPage(
            browser.new_page(viewport={"width": 1000, "height": 700}), lab.url("long.ipynb")
        )
        page.run_to_end(0)
        view = page.run_to_end(1).locator(VIEW)
        playwright.expect(view).to_contain_text(VALUE)
        asked = page.run_to_end(2)
        playwright.expect(asked).to_contain_text("hosts")
        before = asked.inner_text()

        page.page.locator(".jp-WindowedPanel-outer").evaluate("node => node.scrollTo(0, 1e6)")
        playwright.expect(view).to_be_hidden()
        page.page.locator(".jp-WindowedPanel-outer").evaluate("node => node.scrollTo(0, 0)")

        playwright.expect(view).to_contain_text(VALUE)
        value = value_of(view)
        wait_until(lambda: value_of(view) > value + 5, 60, "the view's news")
        playwright.expect(page.run_to_end(2)).to_have_text(before, use_inner_text=True)
        assert page.errors == []
        page.page.close()


def test_notebook_7_shows_a_view_again_after_a_reload_and_saves_no_widget(
    host: str, browser: Any, tmp_path: Path
) -> None:
    disabled = [EXTENSION] if host == "widget" else []
    with running_lab(tmp_path, disabled=disabled, app="notebook") as lab:
        lab.add("seven.ipynb", [SETUP, "task = mgpu.parfeval(count, 'x')\n%tasks --live"])
        tab = browser.new_page(viewport={"width": 1200, "height": 1600})
        page = LabPage(tab, lab.page("notebooks/seven.ipynb"))
        page.run_to_end(0)
        playwright.expect(page.run_to_end(1).locator(VIEW)).to_contain_text(VALUE)
        assert WIDGET not in saved_outputs(page, tmp_path / "seven.ipynb", 1, has="text/html")

        page.reload()

        view = page.output(1).locator(VIEW)
        playwright.expect(view).to_contain_text(VALUE)
        before = value_of(view)
        wait_until(lambda: value_of(view) > before + 5, 60, "the view's news")
        tab.close()


def test_two_browsers_show_the_same_view_and_either_has_the_buttons(
    lab: Lab, open_notebook: Any
) -> None:
    first = open_notebook("two.ipynb", ["task = mgpu.parfeval(count, 'never')\n%tasks --live"])
    first.run_to_end(0)
    first.run_to_end(1)
    saved_outputs(first, lab.folder / "two.ipynb", 1, has="text/html")

    second = open_notebook("two.ipynb")
    views = [page.output(1).locator(VIEW) for page in (first, second)]
    for view in views:
        playwright.expect(view).to_contain_text(VALUE)
        before = value_of(view)
        wait_until(lambda: value_of(view) > before + 5, 60, "the view's news")  # noqa: B023
    views[1].get_by_role("button", name="Cancel…").first.click()
    views[1].get_by_role("button", name="Cancel the task").click()

    for page in (first, second):
        playwright.expect(page.output(1)).to_contain_text("cancelled")


def test_a_view_says_that_its_kernel_was_restarted(open_notebook: Any) -> None:
    page = open_notebook(
        "restart.ipynb", ["task = mgpu.parfeval(count, 'never')\n%tasks --live", "1 + 1"]
    )
    page.run_to_end(0)
    view = page.run_to_end(1).locator(VIEW)
    playwright.expect(view).to_contain_text("running")

    page.page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
    )

    playwright.expect(page.output(1)).to_contain_text(re.compile("not live", re.IGNORECASE))
    page.run_to_end(2)
    assert page.errors == []


def test_a_hidden_page_is_sent_nothing(lab: Lab, browser: Any, host: str) -> None:
    del host
    lab.add(
        "hidden.ipynb",
        [
            SETUP,
            "task = mgpu.parfeval(count, 'never')\n%tasks --live",
            IS_WATCHED,
            "time.sleep(3)",
            "mgpu.cancel_all()",
        ],
    )
    messages: list[bytes] = []
    tab = browser.new_page(viewport={"width": 1200, "height": 1600})
    tab.on("websocket", lambda ws: ws.on("framereceived", lambda frame: messages.append(frame)))
    page = LabPage(tab, lab.url("hidden.ipynb"))
    page.run_to_end(0)
    view = page.run_to_end(1).locator(VIEW)
    playwright.expect(view).to_contain_text(VALUE)

    show(page, "hidden")
    page.run_to_end(2)
    messages.clear()
    page.run_to_end(3)
    assert num_comm_messages(messages) == 0

    before = value_of(view)
    show(page, "visible")
    wait_until(lambda: value_of(view) > before + 5, 60, "the view's news")
    assert num_comm_messages(messages) > 0
    page.run_to_end(4)
    tab.close()


def show(page: LabPage, state: str) -> None:
    """Make a page think that its tab was hidden, or has come back."""
    page.page.evaluate(
        """state => {
            const set = (name, value) =>
                Object.defineProperty(document, name, {value, configurable: true});
            set('visibilityState', state);
            set('hidden', state !== 'visible');
            document.dispatchEvent(new Event('visibilitychange'));
        }""",
        state,
    )


def num_comm_messages(frames: list[Any]) -> int:
    return sum(b"comm_msg" in (frame if isinstance(frame, bytes) else b"") for frame in frames)


def test_a_plot_of_a_blocking_training_grows_and_its_button_ends_it(open_notebook: Any) -> None:
    train = """import torch; torch.set_num_threads(1)
net, x = torch.nn.Linear(4, 2), torch.randn(256, 4)
options = mgpu.TrainingOptions(
    execution_environment="cpu", max_epochs=100_000, mini_batch_size=32, plots="training-progress")
def slow(output, target):
    time.sleep(0.01)
    return torch.nn.functional.cross_entropy(output, target)
net, history = mgpu.train(net, (x, (x.sum(1) > 0).long()), slow, options)"""
    page = open_notebook("train.ipynb", [train, "history.stopped"])
    page.run_to_end(0)
    view = page.run(1).locator(VIEW)
    playwright.expect(view.locator("svg path, svg polyline").first).to_be_visible()
    assert is_busy(page, 1)

    view.get_by_role("button", name="Stop now").click()

    page.wait_for_end(1)
    playwright.expect(page.output(1)).to_contain_text("stopped when asked to")
    playwright.expect(page.run_to_end(2)).to_contain_text("stopped when asked to")


def test_what_ended_while_no_browser_was_open_is_all_there(open_notebook: Any, lab: Lab) -> None:
    work = """def work():
    for step in range(1, 200):
        mgpu.report(step=step, loss=1 / step)
    print("last line")
future = mgpu.parfeval(work)"""
    page = open_notebook("absent.ipynb", [work, "future.result()\nfuture.show()"])
    page.run_to_end(0)
    page.run_to_end(1)
    page.page.goto("about:blank")

    page.page.goto(lab.url("absent.ipynb"))
    page.wait_until_ready()
    output = page.run_to_end(2)

    playwright.expect(output).to_contain_text("last line")
    playwright.expect(output.locator("svg path, svg polyline").first).to_be_visible()
    playwright.expect(output).to_contain_text("0.005")


@pytest.fixture
def deaf_lab(host: str, tmp_path: Path) -> Iterator[Lab]:
    """A Jupyter server of ours whose pages' comm messages wait for the running cell."""
    settings = tmp_path.joinpath(
        "config", "lab", "user-settings", "@jupyterlab", "apputils-extension"
    )
    settings.mkdir(parents=True)
    comms = settings / "kernels-settings.jupyterlab-settings"
    comms.write_text('{"commsOverSubshells": "disabled"}')
    disabled = [EXTENSION] if host == "widget" else []
    with running_lab(tmp_path, disabled=disabled, base_url="/user/someone/") as running:
        yield running


def test_buttons_that_no_comm_carries_reach_the_pool_through_the_server(
    deaf_lab: Lab, browser: Any
) -> None:
    cells = [
        SETUP,
        "first = mgpu.parfeval(count, 'never', name='first')\n%tasks --live",
        "second = mgpu.parfeval(count, 'never', name='second')\nsecond",
        "pool",
        "while pool.is_open: time.sleep(0.02)",
        "second.cancelled(), first.result()",
    ]
    deaf_lab.add("deaf.ipynb", cells)
    page = LabPage(
        browser.new_page(viewport={"width": 1200, "height": 2400}), deaf_lab.url("deaf.ipynb")
    )
    for number in range(3):
        page.run_to_end(number)
    tasks, second, pool = (page.output(number).locator(VIEW) for number in (1, 2, 3))
    page.run_to_end(3)
    playwright.expect(second).to_contain_text("second")
    page.run(4)

    second.get_by_role("button", name="Cancel…").click()
    second.get_by_role("button", name=re.compile("Cancel the")).click()
    playwright.expect(page.output(2)).to_contain_text("was cancelled on the pool 'pool'")
    first = tasks.get_by_role("listitem").filter(has_text="first")
    first.get_by_role("button", name="Stop", exact=True).click()
    playwright.expect(first).to_contain_text("finished")
    assert is_busy(page, 4)
    pool.get_by_role("button", name="Stop…").click()
    pool.get_by_role("button", name="Stop the pool").click()

    page.wait_for_end(4)
    playwright.expect(page.run_to_end(5)).to_contain_text("(True, ")
    assert page.errors == []
    page.page.close()


@pytest.fixture(scope="module")
def many_gpus(
    host: str, gpu_machine: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    machine = gpu_machine("\n".join(gpu(index, lost=int(index == 7)) for index in range(16)))
    disabled = [EXTENSION] if host == "widget" else []
    folder = tmp_path_factory.mktemp("gpus")
    with running_lab(folder, environment=dict(machine), disabled=disabled) as running:
        yield running, machine


def test_sixteen_gpus_are_shown_and_a_lost_one_is_told(many_gpus: Any, browser: Any) -> None:
    lab, machine = many_gpus
    lab.add("many.ipynb", ["%load_ext jupyter_mgpu\n%gpus --live"])
    tab = browser.new_page(viewport={"width": 1200, "height": 2400})
    page = LabPage(tab, lab.url("many.ipynb"))

    view = page.run_to_end(0).locator(VIEW)
    playwright.expect(view).to_contain_text("GPU 15")
    playwright.expect(view.get_by_text("lost", exact=True)).to_have_count(1)
    machine.write("\n".join(gpu(index, lost=int(index in (3, 7))) for index in range(16)))

    playwright.expect(view.get_by_text("lost", exact=True)).to_have_count(2)
    assert re.findall(r"GPU (\d+)", view.inner_text())[:16] == [str(n) for n in range(16)]
    assert view.inner_text().count("H200") == 15  # what was lost before is not known by name
    assert page.errors == []
    tab.close()


def test_a_saved_notebook_is_readable_without_a_kernel(lab: Lab, open_notebook: Any) -> None:
    page = open_notebook(
        "saved.ipynb",
        [
            "task = mgpu.parfeval(lambda: print('its last line'), name='small')\ntask",
            "pool",
            "task.result()\npool.shutdown()",
        ],
    )
    for number in range(4):
        page.run_to_end(number)
    path = lab.folder / "saved.ipynb"
    saved_outputs(page, path, 2, has="stopped")
    saved_outputs(page, path, 1, has="its last line")
    (lab.folder / "again.ipynb").write_text(without_kernel(path))

    opened = page.page.context.new_page()
    opened.set_default_timeout(TIMEOUT_MS)
    opened.goto(lab.url("again.ipynb"))
    opened.locator(".jp-Dialog").get_by_text("No Kernel", exact=True).last.click()

    playwright.expect(opened.locator(".jp-Notebook")).to_contain_text("its last line")
    playwright.expect(opened.locator(".jp-Notebook")).to_contain_text("stopped")
    playwright.expect(opened.locator(".jp-Notebook")).not_to_contain_text("model not found")
    assert len(path.read_bytes()) < 60_000


def without_kernel(path: Path) -> str:
    """A saved notebook, as it is where there is no kernel that it could have."""
    node = json.loads(path.read_text())
    node["metadata"] = {"kernelspec": {"name": "gone", "display_name": "gone", "language": "gone"}}
    return json.dumps(node)


def test_after_a_kill_the_saved_notebook_holds_the_last_state(lab: Lab, open_notebook: Any) -> None:
    kill = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    page = open_notebook("killed.ipynb", [COUNTED, kill])
    page.run_to_end(0)
    view = page.run_to_end(1).locator(VIEW)
    wait_until(lambda: value_of(view) > 20, 60, "the view's news")
    page.run(2)
    playwright.expect(view).to_contain_text(re.compile("not live", re.IGNORECASE))

    saved = saved_outputs(page, lab.folder / "killed.ipynb", 1, has="running")
    assert saved["application/vnd.jupyter-mgpu.view.v1+json"]["kind"] == "tasks"
    assert "Tasks: 1 running" in "".join(saved["text/html"])
    assert WIDGET not in saved
    page.reload()
    playwright.expect(page.output(1)).to_contain_text("1 running")
    playwright.expect(page.output(1)).to_contain_text("count")
    playwright.expect(page.output(1)).not_to_contain_text("model not found")


def test_a_live_view_that_was_saved_reads_well_in_a_page_without_its_kernel(
    lab: Lab, open_notebook: Any
) -> None:
    page = open_notebook("live.ipynb", [COUNTED, "pool"])
    page.run_to_end(0)
    view = page.run_to_end(1).locator(VIEW)
    page.run_to_end(2)
    wait_until(lambda: value_of(view) > 20, 60, "the view's news")
    path = lab.folder / "live.ipynb"
    saved_outputs(page, path, 2, has="engines")
    playwright.expect(view).to_contain_text("running")  # what is on the screen is not touched

    (lab.folder / "later.ipynb").write_text(without_kernel(path))
    opened = page.page.context.new_page()
    opened.set_default_timeout(TIMEOUT_MS)
    opened.goto(lab.url("later.ipynb"))
    opened.locator(".jp-Dialog").get_by_text("No Kernel", exact=True).last.click()

    notebook = opened.locator(".jp-Notebook")
    playwright.expect(notebook).to_contain_text("1 running")
    playwright.expect(notebook).to_contain_text(re.compile("2 engines, busy|busy 2/2"))
    is_trusted = "() => jupyterapp.shell.currentWidget.content.widgets[1].model.trusted"
    assert opened.evaluate(is_trusted) is False  # it is another file than the one that was signed
    playwright.expect(notebook).not_to_contain_text("model not found")


def test_what_ended_while_its_page_was_closed_is_final_when_it_opens_again(
    lab: Lab, open_notebook: Any
) -> None:
    page = open_notebook("back.ipynb", ["task = mgpu.parfeval(count, 'end2')\n%tasks --live\ntask"])
    page.run_to_end(0)
    page.run_to_end(1)
    path = lab.folder / "back.ipynb"
    saved_outputs(page, path, 1, has="running")
    page.page.goto("about:blank")
    (lab.folder / "end2").touch()

    page.page.goto(lab.url("back.ipynb"))
    page.wait_until_ready()

    shown = page.output(1).locator(".jp-OutputArea-child").last
    playwright.expect(shown).to_contain_text("finished")
    saved = saved_outputs(page, path, 1, has='"final": true')
    assert WIDGET not in saved
    assert "finished" in "".join(saved["text/html"])


def test_a_notebook_that_saves_its_widgets_holds_their_code_once(
    browser: Any, tmp_path: Path
) -> None:
    settings = tmp_path.joinpath(
        "config", "lab", "user-settings", "@jupyter-widgets", "jupyterlab-manager"
    )
    settings.mkdir(parents=True)
    (settings / "plugin.jupyterlab-settings").write_text('{"saveState": true}')
    code = sum(file.stat().st_size for file in VIEWS.iterdir())
    with running_lab(tmp_path, disabled=[EXTENSION]) as lab:
        lab.add("widgets.ipynb", [SETUP, *["pool"] * 5])
        tab = browser.new_page(viewport={"width": 1200, "height": 2400})
        page = LabPage(tab, lab.url("widgets.ipynb"))
        for number in range(6):
            page.run_to_end(number)
        playwright.expect(page.page.locator(VIEW)).to_have_count(5)
        saved_outputs(page, tmp_path / "widgets.ipynb", 5, has="text/html")
        text = (tmp_path / "widgets.ipynb").read_text()
        assert "widget-state+json" in text
        assert code < len(text) < 1.3 * code + 5 * 15_000
        tab.close()
