"""Single options of `train`: optimizers, rates, compiling, exchange, torchmetrics, shards."""

import importlib.util
import os
import shutil
from typing import Any

import pytest
import torch
from torch import nn
from training import NUM_CLASSES, difference, fit, mlp, samples

import jupyter_mgpu as mgpu
from jupyter_mgpu import TrainingOptions
from jupyter_mgpu.on_engine import context
from jupyter_mgpu.on_engine.training.batches import order_of, parts_of
from jupyter_mgpu.on_engine.training.loop import Training
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.watching import Watcher
from jupyter_mgpu.pool import Pool

LEAST = 1e-10

# --- optimizers and rates ----------------------------------------------------------------

OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01, weight_decay=1e-4),
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.01, weight_decay=1e-4),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, 0.01, weight_decay=1e-4),
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.01, momentum=0.9, weight_decay=1e-4),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_by_name_makes_the_steps_of_torchs(name: str) -> None:
    net, (inputs, targets) = mlp(), samples(200)
    optimizer = OPTIMIZERS[name](net.parameters())
    for rows in torch.arange(200).split(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs[rows]), targets[rows]).backward()
        optimizer.step()

    trained, _ = fit(mlp(), samples(200), optimizer=name, max_epochs=1, shuffle="never")

    for value, wanted in zip(trained.parameters(), net.parameters(), strict=True):
        assert torch.allclose(value, wanted, atol=LEAST)


def test_the_rates_of_a_schedule_stand_in_the_history() -> None:
    options = {"mini_batch_size": 203, "max_epochs": 25}

    piecewise = fit(mlp(), samples(), schedule="piecewise", **options)[1]["rate"]
    cosine = fit(mlp(), samples(), schedule="cosine", warm_up=4, **options)[1]["rate"]

    assert piecewise == pytest.approx([0.01] * 10 + [0.001] * 10 + [0.0001] * 5)
    assert cosine[0] == pytest.approx(0.002)  # a fifth, as the first of four steps of warm-up
    assert max(cosine) == max(cosine[3:6])
    assert cosine[4:] == sorted(cosine[4:], reverse=True)
    assert cosine[-1] < 0.0001


# --- compiling ---------------------------------------------------------------------------


@pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")),
    reason="torch.compile needs a C++ compiler, and none is installed",
)
def test_a_compiled_network_trains_as_the_network_itself(trio: Pool) -> None:
    net, history = fit(mlp(), samples(), trio, compile=True, worker_load=2, max_epochs=1)

    assert difference((net, history), fit(mlp(), samples(), max_epochs=1)) < LEAST
    assert net.state_dict().keys() == mlp().state_dict().keys()


# --- exchange ----------------------------------------------------------------------------


def count_collectives(num_parts: int) -> int:
    """Train an epoch on each rank of a gang; say how many collectives that took."""
    engine = context.require()
    torch.distributed.init_process_group()
    group = torch.distributed.distributed_c10d._get_default_group()
    ranks = Ranks(engine.rank, (1 / 3, 1 / 3, 1 / 3), engine.device)
    options = TrainingOptions(mini_batch_size=20, max_epochs=1, accumulate=num_parts)
    training = Training(mlp(), samples(), nn.CrossEntropyLoss(), options, ranks, Watcher())
    before = group._get_sequence_number_for_group()
    training.run()
    return group._get_sequence_number_for_group() - before


def test_the_parts_of_a_batch_are_exchanged_once(trio: Pool) -> None:
    whole = list(mgpu.spmd(count_collectives, 1, pool=trio))
    parts = list(mgpu.spmd(count_collectives, 3, pool=trio))

    assert whole == parts
    assert whole[0] >= 20  # gradients and losses of ten steps


def test_backend_and_interface_are_told(trio: Pool) -> None:
    assert fit(mlp(), samples(), trio)[1].exchange == "gloo over lo"
    assert fit(mlp(), samples(), trio, worker_load=2, backend="gloo")[1].exchange == "gloo over lo"
    assert fit(mlp(), samples(), trio, worker_load=1)[1].exchange == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_backend_that_is_not_there_is_refused_in_words(trio: Pool) -> None:
    with pytest.raises(ValueError, match="'nccl', but this rank computes on 'cpu'"):
        fit(mlp(), samples(), trio, backend="nccl")
    with pytest.raises(ValueError, match="backend is 'ucc', but it may be: None, 'nccl', 'gloo'"):
        TrainingOptions(backend="ucc")
    if not torch.distributed.is_mpi_available():
        with pytest.raises(ValueError, match="'mpi', but this torch was built without MPI"):
            fit(mlp(), samples(), trio, backend="mpi")
    assert len(fit(mlp(), samples(), trio)[1].steps) == 20


def test_settings_of_nccl_reach_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "=eth7")

    with mgpu.parpool(1, name="settings") as pool:
        names = "NCCL_ALGO", "NCCL_SOCKET_IFNAME"
        (found,) = mgpu.spmd(lambda: [os.environ.get(name) for name in names], pool=pool)

    assert found == ["Ring", "=eth7"]


# --- torchmetrics ------------------------------------------------------------------------


@pytest.mark.skipif(
    importlib.util.find_spec("torchmetrics") is None, reason="torchmetrics is not installed"
)
def test_objects_of_torchmetrics_see_the_validation_data_of_all_ranks(trio: Pool) -> None:
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score

    inputs, targets = samples(41)
    area = MulticlassAUROC(NUM_CLASSES)
    scores = MetricCollection({"macro": MulticlassF1Score(NUM_CLASSES)})
    metrics = {"area": area, "f1": scores}
    options = {"metrics": metrics, "validation": (inputs, targets), "max_epochs": 2}

    found = fit(mlp(), samples(), trio, output_network="last", **options)

    output = found[0](inputs).detach()
    last = found[1].validations[-1]
    assert last["validation_area"] == pytest.approx(float(area(output, targets)))
    assert last["validation_f1_macro"] == pytest.approx(float(scores(output, targets)["macro"]))
    area.reset(), scores.reset()
    assert difference(found, fit(mlp(), samples(), output_network="last", **options)) < LEAST
    assert area.update_count == 0  # the notebook's own object is not used

    apart = {"area": MulticlassAUROC(NUM_CLASSES, average="none")}
    for pool in (None, trio):
        with pytest.raises(TypeError, match=r"'area' gives a Tensor of shape \(3,\)"):
            fit(mlp(), samples(), pool, **{**options, "metrics": apart})


# --- who sees which samples --------------------------------------------------------------


def shards(shuffle: str, epoch: int, loads: tuple[float, ...]) -> list[list[int]]:
    """Return the samples that each rank sees in an epoch, in its order."""
    options = TrainingOptions(mini_batch_size=20, shuffle=shuffle, drop_last=False, seed=3)
    found = []
    for rank in range(len(loads)):
        ranks = Ranks(rank, loads, "cpu")
        batches = order_of(203, options, ranks).epoch(epoch)
        parts = [part for rows in batches for part in parts_of(rows, ranks, 2)]
        found.append([row for rows, count in parts for row in rows[:count].tolist()])
    return found


def test_every_sample_is_seen_once_per_epoch_by_some_rank_in_another_order_each_time() -> None:
    equal = (1 / 3, 1 / 3, 1 / 3)
    first, second = (shards("every-epoch", epoch, equal) for epoch in range(2))

    for epoch in (first, second):
        assert sorted(row for rows in epoch for row in rows) == list(range(203))
        assert max(map(len, epoch)) - min(map(len, epoch)) <= 11  # one sample per batch
    assert first != second
    assert set(first[0]) != set(second[0])  # the shares are drawn anew, too
    assert shards("once", 0, equal) == shards("once", 1, equal) == first
    assert [*shards("never", 0, (1.0,))[0]] == list(range(203))
    uneven = shards("every-epoch", 0, (0.7, 0.2, 0.1))
    assert [len(rows) for rows in uneven] == [142, 41, 20]
