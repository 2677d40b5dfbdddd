"""Errors that are raised on purpose show the notebook's line and none of the package's."""

import pytest

from notebooks import Notebook, wait_until

REFUSED = {
    "mgpu.parfor(abs, 5)": "TypeError",
    "mgpu.parfor(abs, [1], workers=-1)": "ValueError",
    "mgpu.parfeval(abs, 1, timeout=-1)": "ValueError",
    "mgpu.TrainingOptions(optimizer='lbfgs')": "ValueError",
    "mgpu.DataQueue().get(timeout=0)": "Empty",
    "mgpu.spmd(int)[7]": "IndexError",
    "mgpu.Constant()": "TypeError",
}


WATCH = """
import pathlib, sys, threading

def watch():
    main = threading.get_ident()

    def tell():
        names = set()
        while "result" not in names:
            frame, names = sys._current_frames()[main], set()
            while frame is not None:
                names.add(frame.f_code.co_name)
                frame = frame.f_back
        pathlib.Path({path!r}).touch()

    threading.Thread(target=tell).start()
"""


@pytest.mark.parametrize("call", REFUSED)
def test_a_refusal_shows_the_line_of_the_notebook_alone(nb: Notebook, call: str) -> None:
    cell = nb.run(f"1\n{call}")

    assert cell.ename == REFUSED[call]
    assert cell.evalue in cell.traceback
    assert f"--> {call}" in cell.traceback
    assert "/jupyter_mgpu/" not in cell.traceback


def test_an_error_that_nobody_meant_keeps_all_its_lines(nb: Notebook) -> None:
    cell = nb.run("mgpu.fetch_next(5)")

    assert cell.ename == "TypeError"
    assert "/jupyter_mgpu/" in cell.traceback


def test_an_error_of_the_notebooks_own_keeps_all_its_lines(nb: Notebook) -> None:
    cell = nb.run("def give():\n    raise ValueError('mine')\n\ngive()")

    assert "Traceback (most recent call last)" in cell.traceback
    assert "Raised here by" not in cell.traceback


def test_a_stop_of_a_wait_shows_the_line_of_the_notebook_alone(nb: Notebook, tmp_path) -> None:
    waits = tmp_path / "waits"
    nb.check(WATCH.format(path=str(waits)))
    nb.check("import time\nwaiting = mgpu.parfeval(time.sleep, 60)")
    cell = nb.submit("watch()\nwaiting.result()")
    wait_until(waits.exists, 60, "the wait")

    nb.stop()

    nb.wait(cell)
    assert cell.ename == "KeyboardInterrupt"
    assert "--> waiting.result()" in cell.traceback
    assert "threading.py" not in cell.traceback
    assert nb.check("waiting.cancel()").ok
