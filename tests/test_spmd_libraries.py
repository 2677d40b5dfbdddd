"""What libraries find in a `%%spmd` cell: torchrun's environment, DataLoader workers, figures."""

from pathlib import Path

import pytest

from notebooks import Notebook, notebook


@pytest.fixture(scope="module")
def torch_nb():
    """A notebook whose engines have torch."""
    with notebook() as opened:
        opened.check("%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu\n%parpool 2")
        opened.check("%%spmd\nimport os, torch, torch.distributed as dist", timeout=120)
        yield opened


def test_the_environment_is_that_of_a_torchrun_node(torch_nb: Notebook) -> None:
    cell = torch_nb.check(
        "%%spmd\n"
        "names = ['RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'GROUP_RANK',\n"
        "         'GROUP_WORLD_SIZE', 'MGPU_LOCAL_RANK', 'JAX_PROCESS_ID', 'JAX_NUM_PROCESSES']\n"
        "print(' '.join(os.environ[name] for name in names))\n"
        "assert os.environ['MASTER_ADDR'] and int(os.environ['MASTER_PORT'])\n"
        "assert os.environ['TORCHELASTIC_RUN_ID'] and os.environ['JAX_COORDINATOR_ADDRESS']"
    )

    assert "[0] 0 2 0 1 0 2 0 0 2" in cell.text
    assert "[1] 1 2 0 1 1 2 1 1 2" in cell.text


def test_code_that_trusts_local_rank_stays_below_the_device_count(torch_nb: Notebook) -> None:
    torch_nb.check(
        "%%spmd\n"
        "def set_device(number):\n"
        "    assert number < 1, 'invalid device ordinal'\n"
        "torch.cuda.device_count, torch.cuda.set_device = (lambda: 1), set_device\n"
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))"
    )


@pytest.mark.timeout(300)  # spawned workers import torch anew
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loaders_have_workers_and_the_notebooks_classes(
    torch_nb: Notebook, method: str
) -> None:
    torch_nb.check(
        "import torch\n"
        "class Squares(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, place): return place ** 2\n"
        "def total(method):\n"
        "    loader = torch.utils.data.DataLoader(\n"
        "        Squares(), 4, num_workers=2, multiprocessing_context=method)\n"
        "    return sum(int(batch.sum()) for batch in loader)",
        timeout=120,
    )

    cell = torch_nb.check(f"%%spmd\nprint('total', total({method!r}))", timeout=100)

    assert "[1] total 140" in cell.text
    assert torch_nb.value(f"mgpu.parfeval(total, {method!r}).result(100)", timeout=110) == 140


def test_late_output_of_a_thread_lands_in_its_cell(torch_nb: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    cell = torch_nb.submit(
        "%%spmd --ranks 0\n"
        "import pathlib, threading, time\n"
        "def later():\n"
        f"    while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.02)\n"
        "    print('later', flush=True)\n"
        "threading.Thread(target=later).start()\n"
        "print('now')"
    )
    torch_nb.wait(cell)
    assert "later" not in cell.text

    go.touch()

    torch_nb.wait_for_output(cell, "later")


PNG = "iVBOR"  # the signature, in base64
FIGURE = """%%spmd
import matplotlib.pyplot as plt
plt.figure(figsize=(1 + rank, 1), dpi=100)
plt.plot([1])
plt.show()
"""


def test_fresh_engines_draw_at_once_without_a_screen_and_without_caches(tmp_path: Path) -> None:
    environment = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "MPLCONFIGDIR": str(tmp_path)}

    with notebook(environment) as nb:
        nb.check("import os; del os.environ['DISPLAY'], os.environ['WAYLAND_DISPLAY']")
        nb.check("%load_ext jupyter_mgpu\n%parpool 2")
        cell = nb.check(FIGURE, timeout=120)

    shown = [(data["text/plain"], data.get("image/png", "")[:5]) for data in cell.displays]
    headers_and_figures = sorted(zip(shown[::2], shown[1::2], strict=True))
    assert headers_and_figures == [
        (("rank 0 (CPU):", ""), ("<Figure size 100x100 with 1 Axes>", PNG)),
        (("rank 1 (CPU):", ""), ("<Figure size 200x100 with 1 Axes>", PNG)),
    ]
