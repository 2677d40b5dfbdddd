"""`train`: the same network for any number of ranks, environments, options, loads, notes."""

from typing import Any

import pytest
import torch
from torch import nn
from training import CASES, LEAST, WORLDS, difference, fit, mlp, normed, samples, trained_both_ways

import jupyter_mgpu as mgpu
from jupyter_mgpu import TrainingOptions, train
from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.on_engine import context
from jupyter_mgpu.on_engine.training.loop import Training
from jupyter_mgpu.on_engine.training.ranks import Ranks, split
from jupyter_mgpu.on_engine.training.watching import Watcher
from jupyter_mgpu.pool import Pool
from notebooks import Notebook


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("case", CASES)
def test_ranks_train_the_network_of_one_device(trio: Pool, case: str, world: str) -> None:
    found, wanted = trained_both_ways(trio, case, world)

    assert len(found[1].steps) >= 50
    assert difference(found, wanted) < LEAST


# --- batch normalization, dropout --------------------------------------------------------


def test_running_statistics_are_those_of_the_whole_batch_by_the_rule(trio: Pool) -> None:
    inputs, targets = samples(20)

    net, _ = fit(
        normed(), (inputs, targets), trio, worker_load=[5, 3, 2], max_epochs=1, shuffle="never"
    )

    features = inputs @ normed()[0].weight.T
    parts = features.split([10, 6, 4])
    shares = [0.5, 0.3, 0.2]
    mean = sum(share * part.mean(0) for share, part in zip(shares, parts, strict=True))
    var = sum(
        share * (part.var(0) + (part.mean(0) - mean) ** 2)
        for share, part in zip(shares, parts, strict=True)
    )
    assert torch.allclose(net[1].running_mean, 0.1 * mean, atol=LEAST)
    assert torch.allclose(net[1].running_var, 0.9 + 0.1 * var, atol=LEAST)


def train_here_too(momentum: float | None) -> list[torch.Tensor]:
    """Train on each rank of a gang; its statistics."""
    engine = context.require()
    torch.distributed.init_process_group()
    net = normed()
    net[1].momentum = momentum
    ranks = Ranks(engine.rank, (0.6, 0.3, 0.1), engine.device)
    options = TrainingOptions(mini_batch_size=20, max_epochs=2, optimizer="sgd")
    Training(net, samples(), nn.CrossEntropyLoss(), options, ranks, Watcher()).run()
    return [net[1].running_mean, net[1].running_var, *net.parameters()]


@pytest.mark.parametrize("momentum", [0.1, None])
def test_all_ranks_end_with_the_same_statistics_and_weights(trio: Pool, momentum: Any) -> None:
    first, *others = list(mgpu.spmd(train_here_too, momentum, pool=trio))

    for values in others:
        assert all(torch.equal(a, b) for a, b in zip(first, values, strict=True))


def test_dropout_is_reproducible_for_a_seed(trio: Pool) -> None:
    net = nn.Sequential(mlp()[0], nn.Dropout(0.5), mlp()[2]).double()

    one, same, other = (fit(net, samples(), trio, seed=seed) for seed in (1, 1, 2))

    assert difference(one, same) == 0
    assert difference(one, other) > 0.01


# --- where it trains ---------------------------------------------------------------------


def test_the_given_network_and_the_random_numbers_stay_as_they_are(trio: Pool) -> None:
    net = mlp()
    torch.manual_seed(5)
    expected = torch.rand(1)
    for pool in (None, trio):
        torch.manual_seed(5)
        fit(net, samples(), pool)
        assert torch.rand(1) == expected

    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), mlp().parameters(), strict=True))


@pytest.mark.parametrize("environment", ["auto", "cpu"])
def test_one_device_trains_in_this_process(environment: str) -> None:
    options = TrainingOptions(execution_environment=environment, max_epochs=1, verbose=False)

    _, history = train(mlp(), samples(), nn.CrossEntropyLoss(), options)

    assert history.environment == "cpu"
    assert history.stopped == "all epochs completed"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    options = TrainingOptions(execution_environment="gpu")

    with pytest.raises(MgpuError, match=r"'gpu', but torch sees no GPU"):
        train(mlp(), samples(), nn.CrossEntropyLoss(), options)


def test_arguments_of_another_kind_are_refused_in_words() -> None:
    for options, words in (({"max_epochs": 3}, "options is a dict"), ("gpu", "options is a str")):
        with pytest.raises(TypeError, match=words):
            train(mlp(), samples(), nn.CrossEntropyLoss(), options)
        with pytest.raises(TypeError, match=words):
            mgpu.predict(mlp(), samples(), options)
    with pytest.raises(TypeError, match=r"loss is the class MSELoss. Make one: MSELoss\(\)"):
        train(mlp(), samples(), nn.MSELoss)


def test_too_few_names_of_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="but there are 1 names"):
        mgpu.classify(mlp(), samples()[0], ["cat"])


def test_an_error_of_a_network_shows_no_lines_of_the_package(nb: Notebook) -> None:
    nb.check("import torch\nnet = torch.nn.Linear(3, 2)\nx, y = torch.ones(8, 4), torch.ones(8, 2)")

    for call in ("mgpu.train(net, (x, y), torch.nn.MSELoss())", "mgpu.predict(net, x)"):
        cell = nb.run(f"1\n{call}")
        assert cell.ename == "RuntimeError"
        assert f"--> {call}" in cell.traceback
        assert "/jupyter_mgpu/" not in cell.traceback


def test_multi_gpu_uses_the_current_pool(trio: Pool) -> None:
    assert mgpu.current_pool() is trio
    options = TrainingOptions(execution_environment="multi-gpu", max_epochs=1, verbose=False)

    _, history = train(mlp(), samples(), nn.CrossEntropyLoss(), options)

    assert history.environment == "3 CPU engines of the pool 'trio'"


def test_a_task_trains_a_network_of_its_own_and_its_metrics_arrive(trio: Pool) -> None:
    options = TrainingOptions(execution_environment="auto", mini_batch_size=20, max_epochs=2)

    futures = [
        mgpu.parfeval(train, mlp(), samples(), nn.CrossEntropyLoss(), options, pool=trio)
        for _ in range(3)
    ]

    one, *others = (future.result(60) for future in futures)
    assert all(difference(one, other) == 0 for other in others)
    assert [row["step"] for row in futures[0].metrics] == list(range(1, 21))
    assert futures[0].metrics[-1]["loss"] == one[1]["loss"][-1]
    assert one[1].environment == "cpu"


def test_a_task_cannot_train_on_the_pool(trio: Pool) -> None:
    options = TrainingOptions(execution_environment="multi-gpu")
    future = mgpu.parfeval(train, mlp(), samples(), nn.CrossEntropyLoss(), options, pool=trio)

    with pytest.raises(MgpuError, match=r"'multi-gpu', but this runs on an engine"):
        future.result(30)


def test_a_pool_that_trained_can_still_be_used_and_trains_again(trio: Pool) -> None:
    one = fit(mlp(), samples(), trio)
    assert list(mgpu.spmd(lambda: context.require().rank, pool=trio)) == [0, 1, 2]

    assert difference(fit(mlp(), samples(), trio), one) == 0


# --- who computes how much ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (None, "3 CPU engines"),
        (2, "2 CPU engines"),
        (0.5, "2 CPU engines"),
        (1, "rank 0 of the pool"),
        ([0, 3, 1], "2 CPU engines"),
        ([0, 0, 5], "rank 2 of the pool"),
    ],
)
def test_worker_load_chooses_who_computes(trio: Pool, load: Any, words: str) -> None:
    found = fit(mlp(), samples(), trio, worker_load=load, max_epochs=1)

    assert words in found[1].environment
    assert difference(found, fit(mlp(), samples(), max_epochs=1)) < LEAST


def test_loads_can_be_measured_and_are_told(trio: Pool) -> None:
    found = fit(mlp(), samples(), trio, worker_load="auto")

    assert difference(found, fit(mlp(), samples())) < LEAST
    assert "worker_load='auto': the ranks take" in found[1].notes[0]


@pytest.mark.parametrize("load", [4, 1.5, -1, 0, True, [1, 1], [1, 1, -1], [0, 0, 0], "most"])
def test_a_worker_load_that_does_not_fit_the_pool_is_refused(trio: Pool, load: Any) -> None:
    with pytest.raises(ValueError, match="worker_load is"):
        fit(mlp(), samples(), trio, worker_load=load)


def test_a_batch_is_divided_by_largest_remainder() -> None:
    assert split(10, (0.5, 0.3, 0.2)) == [0, 5, 8, 10]
    assert split(10, (1 / 3, 1 / 3, 1 / 3)) == [0, 4, 7, 10]
    assert split(1, (0.2, 0.8)) == [0, 0, 1]
    assert split(0, (0.5, 0.5)) == [0, 0, 0]


def test_linear_scaling_says_what_it_did(trio: Pool) -> None:
    found = fit(mlp(), samples(), trio, scale="linear")

    wanted = fit(mlp(), samples(), mini_batch_size=60, learning_rate=0.03, warm_up=3)
    assert difference(found, wanted) < LEAST
    (note,) = found[1].notes
    assert "60 samples per step (20 x 3 ranks), rate 0.03, which rises over the first 3" in note


def test_the_share_of_time_in_exchange_is_measured(trio: Pool) -> None:
    assert 0 < fit(mlp(), samples(), trio)[1].exchange_share < 1
    assert fit(mlp(), samples())[1].exchange_share == 0
