"""Idle engines load torch where the notebook has it, and nothing waits for that."""

import os
import signal
from pathlib import Path

from jupyter_mgpu.owner import records
from notebooks import Notebook, notebook, wait_until

LOAD = "%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu"
GATE = """
import importlib.machinery, os, sys, time
def wait():
    open(f"{folder}/begun-{{os.environ['MGPU_RANK']}}", "w").close()
    while not os.path.exists("{folder}/gate"):
        time.sleep(0.01)
class Gate:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        run = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (wait(), run(module))
        return spec
if "MGPU_RANK" in os.environ:
    sys.meta_path.insert(0, Gate)
"""


def pids_of(nb: Notebook) -> list[int]:
    """The engines' processes, from the record: a cell may show the notice of a new engine."""
    (record,) = [record for record in records.read_all() if record["pid"] == nb.pid]
    return [engine["pid"] for engine in record["engines"]]


def has_torch(pid: int) -> bool:
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # it has just ended
        return False


def all_have_torch(nb: Notebook) -> bool:
    pids = pids_of(nb)
    return len(pids) == 2 and all(map(has_torch, pids))


def test_engines_and_store_load_torch_once_the_notebook_has_it() -> None:
    with notebook() as nb:
        nb.check(f"{LOAD}\n%parpool 2")
        nb.check("%%spmd\npass")
        assert not any(map(has_torch, pids_of(nb)))

        nb.check("import torch", timeout=120)

        wait_until(lambda: all_have_torch(nb), 60, "torch on the engines")
        store = "mgpu.current_pool().owner.plan.rendezvous.store_pid"
        wait_until(lambda: nb.value(store) is not None, 20, "the store")
        killed = pids_of(nb)[1]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: killed not in pids_of(nb), 20, "a new engine")
        wait_until(lambda: all_have_torch(nb), 60, "torch on the new engine")


def test_neither_a_task_nor_stop_waits_for_the_import(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(GATE.format(folder=tmp_path))
    with notebook({"PYTHONPATH": str(tmp_path)}) as nb:
        nb.check("import torch", timeout=120)
        nb.check(f"{LOAD}\n%parpool 2")
        pids = pids_of(nb)
        begun = [tmp_path / f"begun-{rank}" for rank in (0, 1)]
        wait_until(lambda: all(path.exists() for path in begun), 20, "the imports")

        assert "[1] at once" in nb.check("%%spmd\nprint('at once')", timeout=10).text
        nb.check("class Mine:\n    pass\nmine = [Mine()]")
        nb.check("%%spmd\nours = mine + [Mine()]", timeout=10)
        assert nb.value("isinstance(mgpu.parfeval(Mine).result(10), Mine)")
        cell = nb.submit("%%spmd\nprint('in it', flush=True)\nimport torch")
        nb.wait_for_output(cell, "[1] in it")
        nb.stop()
        assert nb.wait(cell, 5).ename == "KeyboardInterrupt"

        (tmp_path / "gate").touch()
        cell = nb.check("%%spmd\nimport torch, torch._dynamo\nprint(torch.ones(1))", timeout=60)
        assert "[1] tensor([1.])" in cell.text
        assert pids_of(nb) == pids
