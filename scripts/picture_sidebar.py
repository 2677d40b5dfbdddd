"""Draw the pictures of the sidebar in docs/images, in light and dark.

The GPUs are those of the tests' stub of libnvidia-ml; the engines and their tasks are real.

usage: scripts/isolated.sh .venv/bin/python scripts/picture_sidebar.py
"""

import sys
import tempfile
from pathlib import Path

from picture_views import save

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import gpu_stubs  # noqa: E402 # in tests/
from lab import LabPage, running_browser, running_lab  # noqa: E402 # in tests/
from sidebar import Panel  # noqa: E402 # in tests/

WIDTH, HEIGHT = 330, 1000
SECONDS = 20
CELLS = [
    "%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu\npool = mgpu.parpool(2, gpus=[1, 3])",
    """def learn(steps, rate):
    import time
    for step in range(steps):
        loss = 2.3 / (1 + rate * step)
        mgpu.report(step=step, progress=step / steps, loss=loss, epoch=step // 50)
        if mgpu.stop_requested():
            return step
        time.sleep(0.05)
failed = mgpu.parfeval(lambda: 1 / 0, name="broken")
for rate in (0.1, 0.03, 0.01):
    mgpu.parfeval(learn, 2000, rate, name=f"resnet lr={rate}")""",
]


def scene(second: int) -> str:
    """Four GPUs, two of them at work."""
    lines = [gpu_stubs.gpu(index) for index in range(4)]
    for index, used in ((1, 50_000), (3, 41_000)):
        wave = (7 * second + 17 * index) % 40
        facts = {"util": 55 + wave, "used": used + 90 * wave, "power": 520 + 3 * wave}
        lines[index] = gpu_stubs.gpu(index, temperature=66 + wave // 8, **facts)
    return "\n".join(lines)


def main() -> None:
    """Write one picture per theme."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gpu_stubs.build_libraries(folder)
        machine = gpu_stubs.make_machine(gpu_stubs.gpus(4), folder, folder)
        with running_lab(folder / "lab", dict(machine)) as lab, running_browser() as browser:
            lab.add("train.ipynb", CELLS)
            viewport = {"width": 1200, "height": HEIGHT}
            tab = LabPage(browser.new_page(viewport=viewport), lab.page("lab/tree/train.ipynb"))
            panel = Panel(tab)
            tab.run_to_end(0)
            tab.run_to_end(1)
            for second in range(1, SECONDS):
                machine.write(scene(second))
                tab.page.wait_for_timeout(1000)  # a second of the curves
            panel.widen(WIDTH)
            for theme in ("Light", "Dark"):
                panel.use_theme(f"JupyterLab {theme}")
                whole = tab.page.locator("#jp-left-stack").screenshot()
                save(whole, f"sidebar-{theme.lower()}")


if __name__ == "__main__":
    main()
