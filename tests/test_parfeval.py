"""Calls in the background from a real notebook: what they see of it, and who goes first."""

from pathlib import Path

from notebooks import Notebook

HOLD = """
import pathlib, time
def hold(path):
    while not pathlib.Path(path).exists():
        time.sleep(0.01)
"""


def hold_both_ranks(nb: Notebook, gate: Path) -> None:
    """Keep both ranks busy until the gate's file is there."""
    nb.check(f"{HOLD}\nholders = [mgpu.parfeval(hold, {str(gate)!r}) for _ in range(2)]")


def test_a_function_finds_the_notebooks_modules_and_functions(nb: Notebook) -> None:
    nb.check("import numpy as np\ndef ones():\n    return np.ones(2)")
    nb.check("def twice(): return 2 * ones()\ndef fact(n): return 1 if n < 2 else n * fact(n - 1)")

    assert nb.value("mgpu.parfeval(ones).result(60).tolist()") == [1.0, 1.0]
    assert nb.value("mgpu.parfeval(twice).result(60).tolist()") == [2.0, 2.0]
    assert nb.value("mgpu.parfeval(fact, 5).result(60)") == 120

    nb.check("def ones(): return np.full(2, 7.0)")
    assert nb.value("mgpu.parfeval(twice).result(60).tolist()") == [14.0, 14.0]


def test_queued_tasks_see_a_big_frame_as_it_was_when_they_took_it(
    nb: Notebook, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    hold_both_ranks(nb, gate)
    nb.check(
        "import numpy as np, pandas as pd\n"
        "frame = pd.DataFrame({'x': np.zeros(2_000_000), 'y': 'old'})\n"
        "def look(given): return float(given['x'].sum()), given['y'].iloc[0]\n"
        "def look_at_the_global(): return look(frame)\n"
        "futures = [mgpu.parfeval(look, frame) for _ in range(3)]\n"
        "futures += [mgpu.parfeval(look_at_the_global) for _ in range(3)]"
    )

    nb.check("frame.loc[:, 'x'] += 1\nframe.loc[:, 'y'] = 'new'")
    assert nb.value("{str(future.state) for future in futures}") == {"queued"}
    gate.touch()

    assert nb.value("[future.result(30) for future in futures]") == [(0.0, "old")] * 6
    assert nb.value("mgpu.parfeval(look, frame).result(30)") == (2_000_000.0, "new")


def test_a_cell_goes_before_the_tasks_that_are_queued(nb: Notebook, tmp_path: Path) -> None:
    gate, later = tmp_path / "gate", tmp_path / "later"
    hold_both_ranks(nb, gate)
    nb.check(f"trainings = [mgpu.parfeval(hold, {str(later)!r}) for _ in range(20)]")
    cell = nb.submit("%%spmd\nprint('my turn')")
    nb.wait_for_output(cell, "waiting for rank 0: 'hold-")

    gate.touch()

    assert "[1] my turn" in nb.wait(cell, 20).text
    assert nb.value("sum(str(future.state) == 'queued' for future in trainings)") >= 18
    nb.check("mgpu.cancel_all(trainings)")
