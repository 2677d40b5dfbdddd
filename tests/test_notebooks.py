"""Every notebook runs from top to bottom in a real kernel and shows what its prose promises."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
CELL_TIMEOUT_S = 240

_executed: dict[Path, Any] = {}


def execute(path: Path) -> Any:
    if path not in _executed:
        node = nbformat.read(path, as_version=4)
        NotebookClient(
            node,
            timeout=CELL_TIMEOUT_S,
            kernel_name="python3",
            resources={"metadata": {"path": str(path.parent)}},
        ).execute()
        _executed[path] = node
    return _executed[path]


def text_of(node: Any) -> str:
    outputs = [output for cell in node.cells for output in cell.get("outputs", [])]
    return "\n".join(
        output.text if output.output_type == "stream" else output.data.get("text/plain", "")
        for output in outputs
    )


def figures_of(node: Any) -> int:
    outputs = [output for cell in node.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_without_errors(path: Path) -> None:
    node = execute(path)

    assert all(cell.execution_count for cell in node.cells if cell.cell_type == "code")


@pytest.mark.timeout(400)
def test_the_quickstart_compares_six_networks_one_of_them_cancelled() -> None:
    text = text_of(execute(NOTEBOOKS / "01_quickstart.ipynb"))

    results = re.findall(r"^[\w, ]+ +(\d+\.\d)% after \d+\.\d s$", text, re.MULTILINE)
    best = re.search(r"^Best of six: .* with (\d+\.\d)%$", text, re.MULTILINE)
    assert len(results) >= 5
    assert "cancelled: True - state: cancelled" in text
    assert best is not None
    assert float(best[1]) > 95  # a linear model reaches 94


@pytest.mark.timeout(400)
def test_the_quickstart_trains_one_network_on_all_ranks() -> None:
    text = text_of(execute(NOTEBOOKS / "01_quickstart.ipynb"))

    right = re.search(r"^(\d+) of (\d+) test images are right$", text, re.MULTILINE)
    assert re.search(r"1 rank \d+\.\d s, \d+ ranks \d+\.\d s: speed-up \d", text)
    assert right is not None
    assert int(right[2]) == 360  # every test image was counted once
    assert int(right[1]) > 0.93 * 360


@pytest.mark.timeout(400)
def test_the_quickstart_draws_its_figures() -> None:
    assert figures_of(execute(NOTEBOOKS / "01_quickstart.ipynb")) == 4


@pytest.mark.timeout(400)
def test_the_parfor_notebook_finds_a_setting_and_says_how_sure_it_is() -> None:
    text = text_of(execute(NOTEBOOKS / "02_parfor.ipynb"))

    best = re.search(r"^Best: C=[\d.]+, gamma=[\d.]+ with (\d+\.\d)%$", text, re.MULTILINE)
    sure = re.search(r"^Accuracy between (\d+\.\d)% and (\d+\.\d)%", text, re.MULTILINE)
    assert re.search(r"^1 engine \d+\.\d s, \d+ engines \d+\.\d s$", text, re.MULTILINE)
    assert best is not None
    assert float(best[1]) > 97
    assert sure is not None
    assert 90 < float(sure[1]) < float(sure[2]) < 100
    assert "the same on one engine: True" in text


@pytest.mark.timeout(400)
def test_the_parfor_notebook_runs_a_cell_as_a_loop_and_refuses_another() -> None:
    text = text_of(execute(NOTEBOOKS / "02_parfor.ipynb"))

    right = re.search(r"^\d+ in all; (\d+) of 450 test images are right$", text, re.MULTILINE)
    assert re.search(r"^margins +sliced output", text, re.MULTILINE)
    assert re.search(r"^machine +temporary", text, re.MULTILINE)
    assert [f"digit {digit}: " in text for digit in range(10)] == [True] * 10
    assert right is not None
    assert int(right[1]) > 0.95 * 450
    assert "machine is a name of the notebook: False" in text
    assert "line 2, walk.append(walk[-1] + step): `walk` collects the results" in text


@pytest.mark.timeout(400)
def test_the_parfor_notebook_keeps_results_and_draws_them_as_they_arrive() -> None:
    node = execute(NOTEBOOKS / "02_parfor.ipynb")
    text = text_of(node)

    assert "in item 3 of the loop: -1" in text
    assert re.search(r"^finished: \{0: 0\.9", text, re.MULTILINE)
    assert "InvalidParameterError: " in text
    assert "7 points; 9" in text
    assert figures_of(node) == 2


@pytest.mark.timeout(400)
def test_one_network_is_the_same_on_one_device_and_on_many_and_goes_on_after_a_stop() -> None:
    text = text_of(execute(NOTEBOOKS / "03_one_network.ipynb"))

    apart = re.search(r"^The largest difference of the two loss curves: (\S+)$", text, re.MULTILINE)
    stopped = re.search(r"^(\d+) steps; stopped when asked to$", text, re.MULTILINE)
    resumed = re.search(r"^(\d+) steps in all; all epochs completed$", text, re.MULTILINE)
    right = re.search(r"^(\d+) of (\d+) test images are right$", text, re.MULTILINE)
    assert float(apart[1]) < 1e-3  # in float32
    assert 40 <= int(stopped[1]) < int(resumed[1])
    assert int(right[1]) > 0.93 * int(right[2])
    assert figures_of(execute(NOTEBOOKS / "03_one_network.ipynb")) == 2


@pytest.mark.timeout(400)
def test_what_is_watched_is_readable_in_the_executed_notebook() -> None:
    node = execute(NOTEBOOKS / "04_watch.ipynb")
    text = text_of(node)

    rates = re.findall(r"^rank (\d): busy (?:\d+ %|n/a), (\d+\.\d+) GFLOP/s$", text, re.MULTILINE)
    views = [
        output.data["application/vnd.jupyter-mgpu.view.v1+json"]
        for cell in node.cells
        for output in cell.get("outputs", [])
        if "application/vnd.jupyter-mgpu.view.v1+json" in output.get("data", {})
    ]
    assert [rank for rank, _ in rates] == ["0", "1"]
    assert float(rates[0][1]) > 3 * float(rates[1][1])
    assert "Pool 'pool': 2 engines, stopped" in text
    assert [view["kind"] for view in views] == [
        "pool",
        "tasks",
        "compare",
        "training",
        "training",
        "gpus",
    ]
    assert re.search(r"^validation accuracy: 0\.\d+ at step 92;", text, re.MULTILINE)
    assert "epoch 7: " in text
    assert "widgets" not in node.metadata


@pytest.mark.timeout(400)
def test_the_cells_of_a_cluster_give_the_same_wherever_they_run() -> None:
    text = text_of(execute(NOTEBOOKS / "05_clusters.ipynb"))

    for rank in (0, 1):
        assert len(re.findall(rf"rank {rank} of 2 on \S+ has \[3\.0, 3\.0, 3\.0\]", text)) == 2
    assert "hello from afar" in text
    assert "Did you mean 'hosts'?" in text
    assert re.search(r"^\d passed, 0 failed", text, re.MULTILINE)
