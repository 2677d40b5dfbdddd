"""The sidebar where something is missing: connections, permissions, kernels, servers, drivers."""

import json
import os
import re
import signal
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from gpu_stubs import GpuMachine, gpus
from lab import CHROMIUM, VIEWPORT, Lab, LabPage, running_browser, running_lab
from reverse_proxy import make_certificate, reverse_proxy
from server_processes import guards_of
from sidebar import CELLS, POOLS, TASKS, Panel

from jupyter_mgpu import control
from notebooks import is_alive, wait_until

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("own_runtime_folder"),
]
READ_ONLY = """
from jupyter_server.auth import Authorizer

class OnlyLooks(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        return resource != "jupyter_mgpu" or action == "read"
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running_browser() as driven:
        yield driven


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("lab")) as running:
        yield running


def open_panel(browser: Any, lab: Lab, name: str = "book", url: str = "") -> Panel:
    """The panel beside a notebook in a page of its own."""
    lab.add(f"{name}.ipynb", CELLS)
    path = lab.page(f"lab/workspaces/{name}/tree/{name}.ipynb")
    if url:
        path = path.replace(lab.base, url)
    return Panel(LabPage(browser.new_page(viewport=VIEWPORT, ignore_https_errors=True), path))


def pool_of(lab: Lab) -> tuple[control.FoundPool, str]:
    """The one pool, and the id of its kernel."""
    (pool,) = control.find_pools()
    assert pool.kernel_id is not None
    assert pool.kernel_id in {kernel["id"] for kernel in lab.api("GET", "kernels")}
    return pool, pool.kernel_id


def end_restarted(lab: Lab, kernel: str, killed: int) -> None:
    """End a kernel that was killed, once the server has started it again.

    A server that is ended while it does so raises, and hangs.
    """

    def is_back() -> bool:
        shown = lab.api("GET", f"kernels/{kernel}")
        heard_s = datetime.fromisoformat(shown["last_activity"]).timestamp()
        children = psutil.Process(lab.process.pid).children()
        # Until the server has noticed, it shows the state of the process that was killed.
        began = [
            c.create_time() for c in children if c.pid != killed and kernel in str(c.cmdline())
        ]
        return bool(began) and heard_s > max(began) and shown["execution_state"] == "idle"

    wait_until(is_back, 60, "the kernel's restart")
    lab.api("DELETE", f"kernels/{kernel}")


def test_where_a_proxy_lets_no_websocket_through_the_server_is_asked(
    browser: Any, lab: Lab
) -> None:
    port = int(lab.base.rpartition(":")[2])
    with reverse_proxy(port, refused="/jupyter-mgpu/stream") as other:
        panel = open_panel(browser, lab, "proxied", f"http://127.0.0.1:{other}")

        panel.shows("A proxy lets no WebSocket through")
        panel.tab.run(0)
        panel.shows("ready 2/2")
        panel.tab.run(1)
        panel.shows(re.compile(r"loss \d+"))
        panel.press(TASKS, "Cancel…")
        panel.answer("Cancel the task")
        playwright.expect(panel.node.locator(TASKS)).to_contain_text("cancelled")
        panel.press(POOLS, "Stop…")
        panel.answer("Stop the pool")
        panel.shows("No pool yet.")
        panel.tab.page.close()


def test_behind_tls_the_stream_is_encrypted_too(browser: Any, lab: Lab, tmp_path: Path) -> None:
    port = int(lab.base.rpartition(":")[2])
    sockets: list[str] = []
    with reverse_proxy(port, certificate=make_certificate(tmp_path)) as other:
        panel = open_panel(browser, lab, "encrypted", f"https://127.0.0.1:{other}")
        panel.tab.page.on("websocket", lambda one: sockets.append(one.url))
        panel.tab.reload()
        panel.command("mgpu:open")

        panel.shows("live")
        assert any("/jupyter-mgpu/stream" in url for url in sockets)
        assert all(url.startswith("wss://") for url in sockets)
        panel.tab.page.close()


def test_a_killed_kernels_pool_goes_from_the_panel_with_its_tasks(browser: Any, lab: Lab) -> None:
    panel = open_panel(browser, lab, "killed")
    panel.tab.run(0)
    panel.shows("ready 2/2")
    panel.tab.run(1)
    panel.shows("learn")
    pool, kernel = pool_of(lab)

    os.kill(pool.kernel_pid, signal.SIGKILL)

    panel.shows("No pool yet.")
    panel.shows("No task yet.")
    wait_until(lambda: not any(is_alive(engine.pid) for engine in pool.engines), 30, "their end")
    end_restarted(lab, kernel, pool.kernel_pid)
    panel.tab.page.close()


def test_what_a_killed_kernel_has_left_is_named_and_cleaned_up(browser: Any, lab: Lab) -> None:
    panel = open_panel(browser, lab, "left")
    panel.tab.run(0)
    panel.shows("ready 2/2")
    pool, kernel = pool_of(lab)
    for pid in guards_of(pool):
        os.kill(pid, signal.SIGKILL)

    os.kill(pool.kernel_pid, signal.SIGKILL)

    panel.shows("orphaned")
    panel.shows("its kernel has died, 2 engines are left")
    panel.answer("Ok")  # JupyterLab says as well that the kernel has died
    row = panel.node.locator(POOLS).first
    playwright.expect(row.get_by_role("button", name="Interrupt")).to_be_hidden()
    assert any(is_alive(engine.pid) for engine in pool.engines)
    panel.press(POOLS, "Clean up…")
    playwright.expect(panel.dialog).to_contain_text("The engines that are still there end.")
    panel.answer("Clean up")
    panel.shows("No pool yet.")
    wait_until(lambda: not any(is_alive(engine.pid) for engine in pool.engines), 30, "their end")
    wait_until(lambda: not pool.record_path.exists(), 30, "no record")
    end_restarted(lab, kernel, pool.kernel_pid)
    panel.tab.page.close()


def test_a_stopped_kernel_is_told_as_silent_and_its_engines_end_from_the_panel(
    browser: Any, lab: Lab
) -> None:
    panel = open_panel(browser, lab, "silent")
    panel.tab.run(0)
    panel.shows("ready 2/2")
    pool, kernel = pool_of(lab)

    os.kill(pool.kernel_pid, signal.SIGSTOP)
    try:
        panel.shows("its kernel does not answer: it is stopped, or hangs")
        panel.press(POOLS, "Stop…")
        panel.answer("Stop the pool")

        wait_until(lambda: not any(is_alive(engine.pid) for engine in pool.engines), 30)
        toast = panel.tab.page.locator(".Toastify__toast", has_text="by signal")
        playwright.expect(toast).to_be_visible()
    finally:
        os.kill(pool.kernel_pid, signal.SIGCONT)
    panel.shows("No pool yet.")
    lab.api("DELETE", f"kernels/{kernel}")
    panel.tab.page.close()


def test_who_may_only_look_is_told_why_nothing_can_be_pressed(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "only_looks.py").write_text(READ_ONLY)
    options = ["--ServerApp.authorizer_class=only_looks.OnlyLooks"]
    with running_lab(tmp_path, {"PYTHONPATH": str(tmp_path)}, options=options) as lab:
        panel = open_panel(browser, lab)
        panel.tab.run(0)
        panel.shows("ready 2/2")
        panel.tab.run(1)
        panel.shows("learn")

        panel.shows("You may look, not act")
        for rows, names in ((POOLS, ["Interrupt", "Restart…", "Stop…"]), (TASKS, ["Cancel…"])):
            for name in names:
                button = panel.node.locator(rows).first.get_by_role("button", name=name, exact=True)
                playwright.expect(button).to_be_disabled()
                playwright.expect(button).to_have_attribute("title", re.compile('"execute"'))
        panel.press(TASKS, "Output")
        panel.answer("Close")
        menu = panel.menu_of(panel.node.locator(TASKS).first)
        cancel = menu.locator(".lm-Menu-item", has_text="Cancel…")
        playwright.expect(cancel).to_have_class(re.compile("lm-mod-disabled"))
        panel.tab.page.keyboard.press("Escape")
        panel.node.locator(POOLS).first.focus()
        panel.tab.page.keyboard.press("Delete")
        playwright.expect(panel.dialog).to_have_count(0)
        pool, _ = pool_of(lab)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            post(lab, f"jupyter-mgpu/pools/{pool.id}/stop")
        panel.shows("busy 2/2")
        panel.tab.page.close()


def post(lab: Lab, path: str, token: str | None = None) -> Any:
    request = urllib.request.Request(f"{lab.base}/{path}", data=b"{}", method="POST")
    request.add_header("Authorization", f"token {token or lab.token}")
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.loads(reply.read())


def test_two_users_servers_side_by_side_show_each_their_own_pools(
    browser: Any, tmp_path: Path
) -> None:
    folders = {name: Path(tempfile.mkdtemp(prefix="mgpu-run-")) for name in ("ann", "bob")}
    for name in folders:
        (tmp_path / name).mkdir()
    theirs = {name: {"JUPYTER_RUNTIME_DIR": str(folder)} for name, folder in folders.items()}
    with (
        running_lab(
            tmp_path / "ann", theirs["ann"], base_url="/user/ann%20lee/", token="of-ann"
        ) as ann,
        running_lab(tmp_path / "bob", theirs["bob"], base_url="/user/b@b/", token="of-bob") as bob,
    ):
        panels = {"ann": open_panel(browser, ann), "bob": open_panel(browser, bob)}
        for name, panel in panels.items():
            panel.tab.cell(0).locator(".cm-content").click()
            panel.tab.page.keyboard.press("Control+End")
            panel.tab.page.keyboard.insert_text(f"\npool = mgpu.parpool(1, name='of {name}')")
            panel.tab.page.keyboard.press("Control+Enter")

        for name, panel in panels.items():
            playwright.expect(panel.node.locator(POOLS)).to_have_count(2)
            panel.shows(f"of {name}")
            panel.shows("book.ipynb")
        playwright.expect(panels["ann"].node).not_to_contain_text("of bob")
        playwright.expect(panels["bob"].node).not_to_contain_text("of ann")
        with pytest.raises(urllib.error.HTTPError, match="403"):
            post(bob, "jupyter-mgpu/pools/any/stop", token=ann.token)
        for panel in panels.values():
            assert [error for error in panel.tab.errors if "mgpu" in error] == []
            panel.tab.page.close()


def test_a_driver_that_hangs_is_told_with_the_age_of_the_last_readings(
    gpu_machine: Callable[[str], GpuMachine], browser: Any, tmp_path: Path
) -> None:
    machine = gpu_machine(gpus(2))
    with running_lab(tmp_path, dict(machine)) as lab:
        panel = open_panel(browser, lab)
        panel.shows("GPUs (2)")

        machine.add("hang nvmlDeviceGetUtilizationRates")

        playwright.expect(panel.rows("GPU 0").first).to_contain_text(re.compile(r"stale \d+ s"))
        panel.shows("live")  # everything else goes on
        machine.remove("hang nvmlDeviceGetUtilizationRates")
        playwright.expect(panel.rows("GPU 0").first).not_to_contain_text("stale")
        panel.tab.page.close()


def test_records_that_cannot_be_read_are_told_in_words(browser: Any, tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    (runtime / "jupyter_mgpu").write_text("in the way of the records")
    with running_lab(tmp_path, {"JUPYTER_RUNTIME_DIR": str(runtime)}) as lab:
        panel = open_panel(browser, lab)

        panel.shows("The folder of pool records cannot be read")
        panel.tab.page.close()
