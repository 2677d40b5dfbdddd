"""What only a real GPU can show of devices, leases, pinning and proof."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

USE_GPU = """
import sys, torch
x = torch.ones(2**20, device="cuda"); torch.cuda.synchronize()
print(flush=True); sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _needs_gpus():
    has_driver = shutil.which("nvidia-smi") is not None
    listed = (
        subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False)
        if has_driver
        else None
    )
    if listed is None or listed.returncode or b"GPU 0" not in listed.stdout:
        if os.environ.get("MGPU_REQUIRE_GPUS"):
            pytest.fail("MGPU_REQUIRE_GPUS is set, but nvidia-smi lists no GPU")
        pytest.skip("needs a GPU")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "MGPU_LEASE_DIR": str(tmp_path / "leases")}


def result(environment: dict[str, str], code: str) -> Any:
    """Run code in a fresh process and return what it assigned to `result`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport json; print(json.dumps(result))"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def torch_sees_cuda(environment: dict[str, str]) -> None:
    if not result(environment, "import torch; result = torch.cuda.is_available()"):
        pytest.skip("torch has no CUDA here")


def test_the_inventory_equals_nvidia_smis(environment):
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    expected = re.findall(r"^GPU (\d+): .*\(UUID: (GPU-[^)]+)\)", listed, re.MULTILINE)

    found = result(
        environment,
        "from jupyter_mgpu.nvml import read_inventory\n"
        "result = [[str(d.index), d.uuid] for d in read_inventory().gpus]",
    )

    assert found == [list(pair) for pair in expected]


def test_the_table_reads_real_values_without_touching_cuda(environment):
    values, text, maps = result(
        environment,
        "from jupyter_mgpu.gpus import gpu_table\n"
        "table = gpu_table()\n"
        "result = [[[r.memory_used_bytes, r.memory_total_bytes, r.compute_capability]\n"
        "           for r in table if r.state == 'ok'], repr(table),\n"
        "          open('/proc/self/maps').read()]",
    )

    assert all(used is not None and used < total for used, total, _ in values)
    assert all(capability[0] >= 3 for _, _, capability in values)
    assert "libcuda" not in maps, text


def test_cuda_confirms_the_pin_of_every_gpu(environment):
    proofs = result(
        environment,
        "from jupyter_mgpu.gpus import Request, choose\n"
        "result = [[p.is_proven, p.error, p.warning]\n"
        "          for p in choose(Request(share=True)).prove()]",
    )

    assert proofs
    assert all(is_proven for is_proven, _, _ in proofs), proofs


@pytest.mark.parametrize("visible", ["own", "pool"])
def test_torch_sees_the_gpus_that_were_chosen(environment, visible):
    torch_sees_cuda(environment)
    slots = result(
        environment,
        "from jupyter_mgpu.gpus import Request, choose\n"
        f"slots = choose(Request(share=True, visible={visible!r})).slots\n"
        "result = [[dict(s.environment), [d.uuid for d in s.visible]] for s in slots]",
    )

    for variables, uuids in slots:
        seen = result(
            {**environment, **variables},
            "import torch\n"
            "torch.ones(1, device='cuda:0')\n"
            "result = ['GPU-' + str(torch.cuda.get_device_properties(i).uuid)\n"
            "          for i in range(torch.cuda.device_count())]",
        )
        assert seen == uuids


def test_a_mask_of_uuids_is_respected(environment):
    (uuid, *_) = result(
        environment,
        "from jupyter_mgpu.nvml import read_inventory\n"
        "result = [d.uuid for d in read_inventory().usable]",
    )

    found = result(
        {**environment, "CUDA_VISIBLE_DEVICES": uuid[:20]},
        "from jupyter_mgpu.gpus import Request, choose\n"
        "choice = choose(Request(share=True))\n"
        "result = [[d.uuid for d in choice.slots[0].devices], len(choice.slots)]",
    )

    assert found == [[uuid], 1]


def test_a_foreign_process_on_a_gpu_keeps_it_from_being_taken(environment):
    torch_sees_cuda(environment)
    with subprocess.Popen(
        [sys.executable, "-c", USE_GPU],
        env={**environment, "CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        refused = result(
            environment,
            "from jupyter_mgpu.errors import GpuBusyError\n"
            "from jupyter_mgpu.gpus import Request, choose\n"
            "try: choose(Request(gpus='0')); result = None\n"
            "except GpuBusyError as error: result = str(error)",
        )
        process.kill()

    assert refused is not None
    assert "GPU 0 is used by" in refused


def test_the_gpu_of_the_notebook_itself_can_be_taken_and_is_told(environment):
    torch_sees_cuda(environment)
    masks, sentences = result(
        environment,
        "import torch\n"
        "x = torch.ones(2**20, device='cuda'); torch.cuda.synchronize()\n"
        "from jupyter_mgpu.gpus import Request, choose\n"
        "choice = choose(Request())\n"
        "result = [[s.environment['CUDA_VISIBLE_DEVICES'] for s in choice.slots],\n"
        "          list(choice.sentences)]",
    )

    assert masks
    assert any("is used by this notebook itself as well." in sentence for sentence in sentences)


def test_every_check_of_the_doctor_ends(environment):
    checks = result(
        environment,
        "from jupyter_mgpu.diagnosis import doctor\n"
        "result = [[c.name, c.outcome.value, c.finding] for c in doctor()]",
    )

    outcomes = {name: outcome for name, outcome, _ in checks}
    assert outcomes["driver"] == "passed"
    assert outcomes["GPUs in CUDA"] == "passed"
    assert not [finding for _, _, finding in checks if "could not be checked" in finding]


TRAIN = """
import sys
sys.path.insert(0, {folder!r})
import jupyter_mgpu as mgpu
from torch import nn
from training import cnn, difference, mlp, normed, samples

def fit(make, where, **options):
    asked = mgpu.TrainingOptions(execution_environment=where, mini_batch_size=20, max_epochs=5,
                                 learning_rate=0.01, verbose=False, **options)
    return mgpu.train(make(), samples(), nn.CrossEntropyLoss(), asked)

cases = [(mlp, {{}}), (cnn, {{}}), (normed, {{"sync_batch_norm": True}})]
apart = [difference(fit(make, "multi-gpu", **options), fit(make, {one!r}, **options))
         for make, options in cases]
result = [max(apart), mgpu.current_pool().size]
"""


def test_all_gpus_train_the_network_of_one(environment: dict[str, str]) -> None:
    torch_sees_cuda(environment)

    apart, size = result(environment, TRAIN.format(folder=str(Path(__file__).parent), one="gpu"))

    if size == 1:
        pytest.skip("needs two GPUs")
    assert apart < 1e-10
