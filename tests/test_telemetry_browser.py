"""The sidebar with a pool on another host, in a browser."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_stubs import GpuMachine, gpu
from host_duo import FAR_GPUS
from lab import CHROMIUM, VIEWPORT, LabPage, running_browser, running_lab
from sidebar import Panel

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("own_runtime_folder"),
]
CELL = """%load_ext jupyter_mgpu
import json, sys
sys.path.append({tests!r})
from far_pools import Loopback, far_pool
from host_duo import duo_plans
opened = far_pool(duo_plans(Loopback(json.loads({there!r}))))
pool = opened.__enter__()"""


def test_the_sidebar_shows_gpus_and_memory_of_other_hosts(
    gpu_machine: Callable[[str], GpuMachine], tmp_path: Path
) -> None:
    here, there = gpu_machine(gpu(0, util=5)), gpu_machine(FAR_GPUS)
    cell = CELL.format(tests=str(Path(__file__).parent), there=json.dumps(there))
    with running_lab(tmp_path, dict(here)) as lab, running_browser() as browser:
        lab.add("far.ipynb", [cell])
        tab = LabPage(browser.new_page(viewport=VIEWPORT), lab.page("lab/tree/far.ipynb"))
        panel = Panel(tab)
        tab.run(0)

        panel.shows("GPU 1 on hostb")
        panel.shows("37 %")
        names = panel.node.locator(".mgpu-gpu-rows .mgpu-row-name")
        panel.expect(names).to_have_text(["GPU 0", "GPU 0 on hostb", "GPU 1 on hostb"])
        hosts: Any = panel.node.locator(".mgpu-row-host .mgpu-row-name")
        panel.expect(hosts).to_have_text(["This machine", "hostb"])
        memory = panel.node.get_by_role("meter", name="host memory of hostb")
        panel.expect(memory).to_be_visible()
        assert [error for error in tab.errors if "mgpu" in error] == []
