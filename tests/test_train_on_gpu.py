"""What only real GPUs can show of training: copies, precision, speed-up, other projects' loops."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_on_gpu import _needs_gpus, result, torch_sees_cuda  # noqa: F401 - a fixture
from test_other_frameworks import JAX, KERAS, of_all_ranks
from test_train_libraries import WAYS, check_found

from notebooks import Notebook, notebook

pytestmark = pytest.mark.gpu

TESTS = Path(__file__).parent
PREPARE = f"""
import sys
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent / "benchmarks")!r}]
import time, torch
from functools import partial
from pathlib import Path
from torch import nn
import jupyter_mgpu as mgpu
from training import cnn, difference, mlp, samples
loss = nn.CrossEntropyLoss()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    variables = {**os.environ, "MGPU_LEASE_DIR": str(tmp_path / "leases")}
    torch_sees_cuda(variables)
    return {**variables, "KERAS_BACKEND": "torch", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


@pytest.fixture
def nb(environment: dict[str, str]) -> Iterator[Notebook]:
    """A notebook beside the loops, with one engine per GPU."""
    with notebook(environment, cwd=str(TESTS)) as opened:
        opened.check("%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu, os\n%parpool")
        yield opened


def size_of(nb: Notebook) -> int:
    return nb.value("mgpu.current_pool().size")


# --- train -------------------------------------------------------------------------------

PROFILED = (
    PREPARE
    + """
from torch.profiler import ProfilerActivity, profile
def copies(data):
    options = mgpu.TrainingOptions(execution_environment="gpu", mini_batch_size=20, max_epochs=2,
                                   verbose=False)
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        mgpu.train(mlp(), data, loss, options)
    return sum("HtoD (Pinned" in event.name for event in found.events())
rows = torch.utils.data.TensorDataset(*samples())
result = [copies(samples()), copies(rows), copies(torch.utils.data.DataLoader(rows, num_workers=1))]
"""
)


def test_batches_are_copied_from_pinned_memory(environment: dict[str, str]) -> None:
    found = result(environment, PROFILED)

    assert [count >= 40 for count in found] == [True] * 3  # inputs and targets of 20 batches


LOWER = (
    PREPARE
    + """
inputs, targets = samples()
def fit(where, precision):
    options = mgpu.TrainingOptions(execution_environment=where, mini_batch_size=20, max_epochs=3,
                                   precision=precision, clip_norm=1.0, verbose=False)
    return mgpu.train(cnn().float(), (inputs.float(), targets), loss, options)
exact = fit("gpu", "float32")
result = [difference(fit(where, precision), exact)
          for where in ("gpu", "multi-gpu") for precision in ("bf16", "fp16")]
"""
)


def test_lower_precision_differs_by_its_rounding_only(environment: dict[str, str]) -> None:
    assert [0 < apart < 0.1 for apart in result(environment, LOWER)] == [True] * 4


ONE_EACH = (
    PREPARE
    + """
pool = mgpu.parpool()
options = mgpu.TrainingOptions(execution_environment="gpu", mini_batch_size=20, max_epochs=2)
futures = [mgpu.parfeval(mgpu.train, mlp(), samples(), loss, options) for _ in range(pool.size)]
found = [future.result(80) for future in futures]
result = [sorted(future.rank for future in futures), pool.size,
          [history.environment for _, history in found],
          max(difference(found[0], other) for other in found)]
"""
)


def test_each_engine_trains_a_network_of_its_own_on_its_gpu(environment: dict[str, str]) -> None:
    ranks, size, environments, apart = result(environment, ONE_EACH)

    assert ranks == list(range(size))
    assert environments == ["cuda:0"] * size
    assert apart < 1e-10


SPEED = (
    PREPARE
    + """
from bench_train import note_time, wide_resnet
PER_GPU, STEPS, EPOCHS, WARM_UP = 256, 10, 6, 20
def images(num):
    stream = torch.Generator().manual_seed(0)
    return torch.randn(num, 3, 32, 32, generator=stream), torch.arange(num) % 10
def speed(pool, num_gpus):
    path, batch = Path(f"stamps-{num_gpus}"), PER_GPU * num_gpus
    options = mgpu.TrainingOptions(
        execution_environment="parallel", worker_load=num_gpus, optimizer="sgd",
        max_epochs=EPOCHS, mini_batch_size=batch, callbacks=[partial(note_time, str(path))],
        verbose=False)
    _, history = mgpu.train(wide_resnet(), images(batch * STEPS), loss, options, pool=pool)
    stamps = [float(line) for line in path.read_text().split()]
    rate = batch * (len(stamps) - WARM_UP) / (stamps[-1] - stamps[WARM_UP - 1])
    return rate, history.exchange, history.exchange_share, history["loss"][-1]
with mgpu.parpool() as pool:
    result = [pool.size, speed(pool, 1), speed(pool, pool.size)]
"""
)


def test_the_speed_up_of_a_wide_resnet_is_measured(
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    size, (one, *_), (all_gpus, exchange, share, last_loss) = result(environment, SPEED)

    if size == 1:
        pytest.skip("needs two GPUs")
    with capsys.disabled():
        print(
            f"\nWRN-16-2, 256 images per GPU: {one:,.0f} images/s on 1 GPU, {all_gpus:,.0f} on "
            f"{size}: speed-up {all_gpus / one:.2f}; {share:.0%} in exchange by {exchange}"
        )
    assert exchange.startswith("nccl")
    assert last_loss < 2.3  # less than chance: all of them have learned the same


# --- other projects ----------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_loop_that_is_not_ours_runs_twice_on_all_gpus(
    nb: Notebook, tmp_path: Path, way: str
) -> None:
    size = size_of(nb)
    if size not in (2, 3, 4, 6):
        pytest.skip("needs 2, 3, 4 or 6 GPUs, between which the samples are whole batches")
    for _ in range(2):
        call = way.format(folder=str(tmp_path))
        nb.check(f"%%spmd\nimport library_loops\nfound = library_loops.{call}", timeout=110)

        check_found(of_all_ranks(nb, "found"), size)


def test_keras_trains_on_the_gpu_of_its_rank(nb: Notebook) -> None:
    if importlib.util.find_spec("keras") is None:
        pytest.skip("keras is not installed")
    nb.check(KERAS, timeout=110)

    assert of_all_ranks(nb, "seen") == [("torch", "cuda:0", "cuda:0")] * size_of(nb)


def test_jax_finds_the_ranks_and_sees_the_gpu_of_its_own(
    nb: Notebook, environment: dict[str, str]
) -> None:
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    if result(environment, "import jax; result = jax.default_backend()") != "gpu":
        pytest.skip("jax has no CUDA here")
    size = size_of(nb)

    nb.check(JAX, timeout=110)

    total = size * (size + 1) / 2
    expected = [(rank, size, 1, size, "gpu", "gpu", total) for rank in range(size)]
    assert of_all_ranks(nb, "seen") == expected
