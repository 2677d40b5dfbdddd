"""The sidebar in a page of JupyterLab: from its activation to its first paint, and what is loaded.

Sixteen GPUs of the C stub of libnvidia-ml, a pool of two engines. The panel is activated by its
command, in a page that was loaded without it. A page that had it open restores it with the rest:
there the notebook's first cell is the peer, both from the plugin's activation.
"""

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import gpu_stubs
import lab

NUM_GPUS = 16
POOL = "%load_ext jupyter_mgpu\n%parpool 2 --gpus 0,1 --name bench"
# A frame is painted after its callbacks; a message is taken up after that.
WATCH = """
window.firstPaints = {};
const painted = (name, selector) => {
    const look = () => {
        const found = [...document.querySelectorAll(selector)];
        if (window.firstPaints[name] || !found.some(one => one.getClientRects().length)) return;
        window.firstPaints[name] = -1;
        requestAnimationFrame(() => {
            const after = new MessageChannel();
            after.port1.onmessage = () => { window.firstPaints[name] = performance.now(); };
            after.port2.postMessage(0);
        });
    };
    new MutationObserver(look).observe(document, {
        subtree: true, childList: true, attributes: true
    });
};
painted('panel', '.jp-mgpu-panel .mgpu-status');
painted('rows', '.jp-mgpu-panel .mgpu-gpu-rows .mgpu-row');
painted('cell', '.jp-Notebook .jp-Cell');
"""
PAINTED = "() => ['panel', 'rows', 'cell'].every(name => window.firstPaints[name] > 0)"
OPEN = """() => {
    window.openedAt = performance.now();
    void window.jupyterapp.commands.execute('mgpu:open');
}"""
PLUGIN = "() => performance.getEntriesByName('jupyter-mgpu:activate')[0].startTime"


def new_page(browser: Any) -> Any:
    page = browser.new_context(viewport=lab.VIEWPORT).new_page()
    page.set_default_timeout(lab.TIMEOUT_MS)
    page.add_init_script(WATCH)
    return page


def first_paint(page: Any, since: str) -> dict[str, float]:
    """Return the seconds to the panel, to its rows, and to the notebook's first cell."""
    page.wait_for_function(PAINTED)
    paints, since_ms = page.evaluate("() => window.firstPaints"), page.evaluate(since)
    return {name: (at_ms - since_ms) / 1000 for name, at_ms in paints.items()}


def median(paints: list[dict[str, float]], name: str) -> float:
    return statistics.median(paint[name] for paint in paints)


def opened(browser: Any, server: lab.Lab) -> Iterator[measure.Row]:
    """Measure from the command that opens the panel, in a page that has loaded without it."""
    paints = []
    for number in range(measure.REPEATS):
        page = new_page(browser)
        page.goto(server.page(f"lab/workspaces/opened-{number}/tree/book.ipynb"))
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        page.evaluate("() => window.jupyterapp.restored")
        page.evaluate(OPEN)
        paints.append(first_paint(page, "() => window.openedAt"))
        measure.step(f"opened: {paints[-1]['panel']:.3f} s, with GPUs {paints[-1]['rows']:.3f} s")
        page.context.close()
    name = "sidebar's first paint after its activation"
    yield measure.Row(name, median(paints, "panel"), "s", "< 0.5 s", "")
    yield measure.Row(f"{name}: with GPUs", median(paints, "rows"), "s", "", "")


def restored(browser: Any, url: str) -> Iterator[measure.Row]:
    """Measure from the plugin's activation, in a page whose layout has the panel open."""
    page = new_page(browser)
    page.goto(url)
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.evaluate("() => window.jupyterapp.restored")
    page.evaluate(OPEN)
    page.wait_for_function(PAINTED)
    paints = []
    for _ in range(measure.REPEATS):
        page.wait_for_timeout(2000)  # the layout is saved a second after it has changed
        page.reload()
        paints.append(first_paint(page, PLUGIN))
        words = ", ".join(f"{name} {at_s:.3f} s" for name, at_s in paints[-1].items())
        measure.step(f"restored: {words}")
    page.context.close()
    peers: dict[str, float | None] = {"the notebook": median(paints, "cell")}
    name = "sidebar with GPUs in a page that restores it"
    yield measure.Row(name, median(paints, "rows"), "s", "", "", peers)


def sizes() -> Iterator[measure.Row]:
    """Measure what a page loads for the panel: its chunk, the styles, and the entry."""
    built = Path(__file__).parents[1] / "jupyter_mgpu" / "labextension" / "static"
    chunks = [*built.glob("lib_index_js.*"), *built.glob("style_index_js.*")]
    loaded = sum(path.stat().st_size for path in (*chunks, *built.glob("remoteEntry.*")))
    yield measure.Row("sidebar: what a page loads", loaded / 1000, "kB", "< 150 kB", "")


def main() -> Iterator[measure.Row]:
    yield from sizes()
    with tempfile.TemporaryDirectory(prefix="mgpu-") as name:
        folder = Path(name)
        os.environ["JUPYTER_RUNTIME_DIR"] = str(folder / "run")
        gpu_stubs.build_libraries(folder)
        machine = gpu_stubs.make_machine(gpu_stubs.gpus(NUM_GPUS), folder, folder)
        (folder / "lab").mkdir()
        with (
            lab.running_lab(folder / "lab", dict(machine)) as server,
            lab.running_browser() as driven,
        ):
            server.add("book.ipynb", [POOL])
            url = server.page("lab/workspaces/bench/tree/book.ipynb")
            tab = lab.LabPage(driven.new_page(viewport=lab.VIEWPORT), url)
            tab.run_to_end(0)
            tab.page.close()
            yield from opened(driven, server)
            yield from restored(driven, url)


if __name__ == "__main__":
    measure.emit(main())
