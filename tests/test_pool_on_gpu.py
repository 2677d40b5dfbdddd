"""What only real GPUs can show of a pool: pins that torch sees, training, memory, collectives."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_on_gpu import _needs_gpus, result, torch_sees_cuda  # noqa: F401 - a fixture

from notebooks import Notebook, notebook, wait_until

pytestmark = pytest.mark.gpu

DDP = """%%spmd
import torch, torch.distributed as dist
dist.init_process_group()
torch.manual_seed(0)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
sgd = torch.optim.SGD(ddp.parameters(), 0.01)
for _ in range(5):
    sgd.zero_grad(); ddp(torch.ones(8, 64, device="cuda") * (rank + 1)).sum().backward(); sgd.step()
total = torch.full((1,), rank + 1.0, device="cuda")
dist.barrier()
dist.all_reduce(total)
print("sum", total.item())
"""
USED = "{r.index: r.memory_used_bytes for r in mgpu.gpu_table() if r.state == 'ok'}"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    variables = {**os.environ, "MGPU_LEASE_DIR": str(tmp_path / "leases")}
    torch_sees_cuda(variables)
    return variables


@pytest.fixture
def nb(environment: dict[str, str]) -> Iterator[Notebook]:
    with notebook(environment) as opened:
        opened.check("%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu, os")
        yield opened


def all_uuids(environment: dict[str, str]) -> list[str]:
    code = "from jupyter_mgpu.nvml import read_inventory\n"
    return result(environment, code + "result = [gpu.uuid for gpu in read_inventory().usable]")


def two_gpus(environment: dict[str, str]) -> None:
    if len(all_uuids(environment)) < 2:
        pytest.skip("needs two GPUs")


SEEN = (
    "%%spmd --quiet\nimport torch\ntorch.ones(1, device='cuda'), torch.ones(1, device='cuda:0')\n"
    "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
    "seen = (torch.cuda.device_count(), 'GPU-' + str(torch.cuda.get_device_properties(0).uuid))"
)


def seen(nb: Notebook) -> list[tuple[int, str]]:
    nb.check(SEEN, timeout=120)
    return nb.value("list(mgpu.current_pool()['seen'])")


def test_a_pool_named_by_uuid_has_that_gpu_and_no_other(
    nb: Notebook, environment: dict[str, str]
) -> None:
    uuid = all_uuids(environment)[-1]

    nb.check(f"%parpool --gpus {uuid}")

    assert seen(nb) == [(1, uuid)]


def test_a_gpu_that_is_not_the_first_is_its_engines_first(
    nb: Notebook, environment: dict[str, str]
) -> None:
    two_gpus(environment)
    uuids = all_uuids(environment)

    nb.check("%parpool --gpus 1,0")

    assert seen(nb) == [(1, uuids[1]), (1, uuids[0])]


def test_training_works_after_the_notebook_itself_has_used_cuda(nb: Notebook) -> None:
    nb.check("import torch\nx = torch.zeros(1).cuda()", timeout=120)
    nb.check("%parpool")
    size = nb.value("mgpu.current_pool().size")

    assert f"sum {size * (size + 1) / 2}" in nb.check(DDP, timeout=120).text


def test_plain_ddp_code_runs_on_distinct_gpus_in_any_order(
    nb: Notebook, environment: dict[str, str]
) -> None:
    two_gpus(environment)
    nb.check("%parpool --gpus 1,0")

    assert "[1] sum 3.0" in nb.check(DDP, timeout=120).text
    assert len({uuid for _, uuid in seen(nb)}) == 2


def test_a_failing_rank_frees_the_other_from_nccl(
    nb: Notebook, environment: dict[str, str]
) -> None:
    two_gpus(environment)
    nb.check("%parpool 2")
    nb.check(DDP, timeout=120)
    nb.check("%%spmd\nkept = rank + 7")

    cell = nb.run("%%spmd\nif rank == 0:\n    1 / 0\ndist.barrier()", timeout=30)

    assert cell.ename == "ZeroDivisionError"
    assert "[1] sum 3.0" in nb.check(DDP, timeout=60).text
    kept = nb.run("print(list(mgpu.current_pool()['kept']))")
    assert kept.stdout == "[7, 8]\n" or "lost" in kept.text.lower()


def test_cuda_results_come_back_to_the_cpu_and_outlive_their_engine(nb: Notebook) -> None:
    nb.check("%parpool 1")
    nb.check(
        "def make():\n"
        "    import torch\n"
        "    return torch.ones(3, device='cuda'), torch.nn.Linear(2, 2).cuda()\n"
        "tensor, net = mgpu.parfeval(make).result(100)\n"
        "mgpu.current_pool().shutdown()",
        timeout=120,
    )

    assert nb.value("(str(tensor.device), str(net.weight.device))") == ("cpu", "cpu")
    assert nb.value("tensor.tolist()") == [1.0, 1.0, 1.0]


def test_a_cancelled_task_gives_its_gpu_memory_back(nb: Notebook) -> None:
    nb.check("%parpool --gpus 0")
    nb.check("mgpu.parfeval(exec, \"import torch; torch.ones(1, device='cuda')\").result(100)")
    before = nb.value(USED)[0]
    nb.check(
        "def fill():\n"
        "    import time, torch\n"
        "    block = torch.ones(1 << 30, dtype=torch.uint8, device='cuda')\n"
        "    mgpu.report(filled=1)\n"
        "    time.sleep(999)\n"
        "future = mgpu.parfeval(fill)"
    )
    wait_until(lambda: nb.value("bool(future.metrics)"), 60, "a full GPU")
    assert nb.value(USED)[0] > before + (900 << 20)

    nb.check("future.cancel()")

    wait_until(lambda: nb.value(USED)[0] < before + (200 << 20), 5, "the memory")


PIDS_ON_GPUS = "{r.index: [u.pid for u in r.users if u.pid] for r in mgpu.gpu_table()}"


def test_each_gpu_has_the_process_of_its_own_engine_and_no_other(
    nb: Notebook, environment: dict[str, str]
) -> None:
    two_gpus(environment)
    nb.check("%parpool --gpus 0,1")
    seen(nb)  # CUDA is in use on both
    engines = nb.value("[e.pid for e in mgpu.current_pool().engines]")

    on_gpus = nb.value(PIDS_ON_GPUS)

    assert [set(on_gpus[index]) & set(engines) for index in (0, 1)] == [{pid} for pid in engines]


def test_a_library_that_touches_all_devices_reaches_its_engines_gpu_only(
    nb: Notebook, environment: dict[str, str]
) -> None:
    two_gpus(environment)
    nb.check("%parpool --gpus 0,1")
    before = nb.value(USED)[1]

    nb.check(
        "%%spmd --ranks 0\nimport torch\n"
        "held = [torch.ones(1 << 28, dtype=torch.uint8, device=f'cuda:{i}')\n"
        "        for i in range(torch.cuda.device_count())]",
        timeout=120,
    )

    assert nb.value(USED)[1] < before + (50 << 20)


REDUCE = """%%spmd
import torch, torch.distributed as dist
dist.init_process_group()
big = torch.ones(2**26, device=device)  # 256 MiB
dist.all_reduce(big)
torch.cuda.synchronize()
"""


def way_of_nccl(environment: dict[str, str], visible: str) -> set[str]:
    """Say by which ways NCCL sends between two engines: P2P, SHM, NET."""
    told = {**environment, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,P2P"}
    with notebook(told) as nb:
        nb.check("%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu")
        nb.check(f"%parpool 2 --visible {visible}")
        nb.check(REDUCE, timeout=180)
        folder = nb.value("str(mgpu.current_pool().owner.plan.folder)")
        logs = "".join(path.read_text(errors="replace") for path in Path(folder).glob("rank*.log"))
    return set(re.findall(r"via (P2P|SHM|NET)", logs))


def test_pinned_engines_reach_each_other_as_engines_that_see_all_gpus(
    environment: dict[str, str],
) -> None:
    two_gpus(environment)

    own, pool = (way_of_nccl(environment, visible) for visible in ("own", "pool"))

    assert pool, "NCCL has not told its ways"
    assert own == pool


LAYERS = """%%spmd --quiet
import torch
from torch import nn

def losses(first, second):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(64, 64), nn.Tanh()).double().to(first)
    head = nn.Linear(64, 8).double().to(second)
    sgd = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.1)
    inputs = torch.randn(32, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = []
    for _ in range(20):
        sgd.zero_grad()
        loss = head(body(inputs.to(first)).to(second)).square().mean()
        loss.backward()
        sgd.step()
        found.append(loss.item())
    return found, [torch.cuda.memory_allocated(i) > 0 for i in range(torch.cuda.device_count())]

apart, used = losses("cuda:0", "cuda:1")
together, _ = losses("cuda:0", "cuda:0")
"""


def test_one_engine_trains_a_network_with_layers_on_two_gpus(
    nb: Notebook, environment: dict[str, str]
) -> None:
    two_gpus(environment)
    nb.check("%parpool 1 --gpus-per-engine 2")

    nb.check(LAYERS, timeout=120)

    apart, together, used = nb.value(
        "[mgpu.current_pool()[n][0] for n in ('apart', 'together', 'used')]"
    )
    assert used == [True, True]
    assert together[-1] < together[0]
    assert max(abs(a - b) for a, b in zip(apart, together, strict=True)) < 1e-10


PIPELINE = """
import sys
sys.path.insert(0, {folder!r})
import jupyter_mgpu as mgpu
from torch import nn
from training import cnn, difference, mlp, samples, tied

def fit(make, where, **options):
    asked = mgpu.TrainingOptions(execution_environment=where, mini_batch_size=20, max_epochs=5,
                                 learning_rate=0.01, verbose=False, **options)
    return mgpu.train(make(), samples(), nn.CrossEntropyLoss(), asked)

mgpu.parpool(2)
apart = [difference(fit(make, "multi-gpu", strategy="pipeline", pipeline_schedule=schedule),
                    fit(make, "gpu"))
         for make in (mlp, cnn, tied) for schedule in ("gpipe", "1f1b")]
result = max(apart)
"""


def test_layers_on_different_gpus_train_the_network_of_one(environment: dict[str, str]) -> None:
    two_gpus(environment)

    assert result(environment, PIPELINE.format(folder=str(Path(__file__).parent))) < 1e-10
