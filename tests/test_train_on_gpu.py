"""What only real GPUs can show of `train`: one result for each strategy, over nccl."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_on_gpu import _needs_gpus, torch_sees_cuda  # noqa: F401 - a fixture
from test_pool_on_gpu import two_gpus

from notebooks import Notebook, notebook

pytestmark = pytest.mark.gpu

PREPARE = """
%load_ext jupyter_mgpu
import jupyter_mgpu as mgpu, torch
from torch import nn
torch.manual_seed(0)
layers = nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 3)
net = nn.Sequential(*layers).double()
data = torch.randn(400, 64).double(), torch.randint(0, 3, (400,))
def fit(where, **options):
    settings = dict(max_epochs=3, mini_batch_size=20, clip_norm=0.5, verbose=False, **options)
    return mgpu.train(net, data, nn.CrossEntropyLoss(), mgpu.TrainingOptions(
        execution_environment=where, **settings))
"""


@pytest.fixture
def nb(tmp_path: Path) -> Iterator[Notebook]:
    variables = {**os.environ, "MGPU_LEASE_DIR": str(tmp_path / "leases")}
    torch_sees_cuda(variables)
    two_gpus(variables)
    with notebook(variables) as opened:
        opened.check(PREPARE)
        yield opened


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "pipeline"])
def test_gpus_train_the_network_of_one_gpu(nb: Notebook, strategy: str) -> None:
    nb.check("one, wanted = fit('gpu')", timeout=60)

    nb.check(f"many, found = fit('multi-gpu', strategy={strategy!r})", timeout=110)

    assert nb.value("mgpu.current_pool().device(0)") != "CPU"
    pairs = "zip(one.parameters(), many.parameters())"
    assert nb.value(f"max(float((a - b).abs().max()) for a, b in {pairs})") < 1e-10
    losses = "zip(wanted['loss'], found['loss'])"
    assert nb.value(f"max(abs(a - b) for a, b in {losses})") < 1e-10
