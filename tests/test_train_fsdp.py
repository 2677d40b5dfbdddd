"""`train(strategy="fsdp")`: one device's network from divided parameters; its life, its limits."""

import os
import shutil
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from training import (
    CASES,
    ENDLESS,
    LEAST,
    WORLDS,
    begin,
    die_once,
    difference,
    fit,
    mlp,
    samples,
    trained_both_ways,
)

import jupyter_mgpu as mgpu
from jupyter_mgpu import TrainingOptions
from jupyter_mgpu.errors import EngineDiedError
from jupyter_mgpu.on_engine import context
from jupyter_mgpu.on_engine.training.loop import Training
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.strategies.sharding.traffic import Reducing
from jupyter_mgpu.on_engine.training.strategies.sharding.units import units_of
from jupyter_mgpu.on_engine.training.watching import Watcher
from jupyter_mgpu.pool import Pool

fit_fsdp = partial(fit, strategy="fsdp")


# --- one result --------------------------------------------------------------------------


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("case", CASES)
def test_ranks_train_the_network_of_one_device(trio: Pool, case: str, world: str) -> None:
    found, wanted = trained_both_ways(trio, case, world, strategy="fsdp")

    assert len(found[1].steps) >= 50
    assert difference(found, wanted) < LEAST


class Memory(nn.Module):
    """Recurrence and attention: torch's modules that use weights in ways of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(4, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found, _ = self.memory(x.view(-1, 3, 4))
        found, _ = self.attention(found, found, found)
        return self.head(found[:, -1])


class Wide(nn.Module):
    """A parameter of its own, blocks in a list, a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(12))
        self.scales = nn.ParameterList([torch.ones(1), torch.ones(12)])
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.LayerNorm(12)) for _ in range(10)
        )
        self.twice = nn.Linear(12, 12)
        self.head = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.scales[0] * self.scales[1] * x + self.shift
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.twice(torch.tanh(self.twice(x))))


class Views(nn.Module):
    """Layers whose outputs are views that are changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Sequential(nn.Linear(12, 12), nn.Flatten(0)) for _ in "12")
        self.head = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.first(x)
        found.mul_(2)
        found = self.second(found.view(-1, 12))
        found += 1
        return self.head(found.view(-1, 12))


def frozen() -> nn.Module:
    net = mlp()
    net[0].requires_grad_(False)  # noqa: FBT003 - torch's order
    net[0].bias.requires_grad = True
    return net


def channels_last() -> nn.Module:
    image = nn.Unflatten(1, (3, 2, 2)), nn.Conv2d(3, 4, 2), nn.Flatten()
    net = nn.Sequential(*image, nn.Linear(4, 3)).double()
    return net.to(memory_format=torch.channels_last)


NETS: dict[str, Any] = {
    "recurrence and attention": Memory,
    "blocks": Wide,
    "views": Views,
    "frozen layers": frozen,
    "channels last": channels_last,
    "a transformer": lambda: nn.Sequential(
        nn.Unflatten(1, (3, 4)),
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0, batch_first=True),
        nn.Flatten(),
        nn.Linear(12, 3),
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_networks_of_all_kinds_are_those_of_one_device(trio: Pool, name: str) -> None:
    torch.manual_seed(0)
    net = NETS[name]().double()

    options = {"validation": samples(2)}  # a rank has none, and must call the layers with others

    found = fit_fsdp(net, samples(), trio, worker_load=[5, 3, 2], **options)

    assert difference(found, fit(net, samples(), **options)) < LEAST


def test_float32_networks_are_averaged_as_well(trio: Pool) -> None:
    inputs, targets = samples()
    data = inputs.float(), targets

    found = fit_fsdp(mlp().float(), data, trio, optimizer="sgd")

    assert difference(found, fit(mlp().float(), data, optimizer="sgd")) < 1e-5


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_is_that_of_ddp(trio: Pool, precision: str) -> None:
    inputs, targets = samples()
    data = inputs.float(), targets
    options = {"precision": precision, "clip_norm": 0.5, "optimizer": "sgd"}

    found = fit_fsdp(mlp().float(), data, trio, **options)

    assert difference(found, fit(mlp().float(), data, trio, **options)) < 1e-4


@pytest.mark.timeout(300)  # the compiler runs on each rank
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
def test_a_compiled_network_is_that_of_one_device(trio: Pool) -> None:
    found = fit_fsdp(mlp(), samples(), trio, compile=True, worker_load=2, max_epochs=1)

    assert difference(found, fit(mlp(), samples(), max_epochs=1)) < LEAST


def dropping() -> nn.Module:
    first, act, last = mlp()
    return nn.Sequential(first, act, nn.Dropout(0.3), nn.BatchNorm1d(16), last).double()


def test_dropout_and_running_statistics_are_those_of_ddp(trio: Pool) -> None:
    options = {"worker_load": [5, 3, 2], "seed": 3}

    found = fit_fsdp(dropping(), samples(), trio, **options)

    assert difference(found, fit(dropping(), samples(), trio, **options)) < LEAST


# --- what is divided ---------------------------------------------------------------------


def names_of(net: nn.Module) -> list[str]:
    units = {id(unit) for unit in units_of(net)}
    return [name for name, module in net.named_modules() if id(module) in units]


def test_blocks_are_units_and_torchs_own_modules_stay_whole() -> None:
    blocks = [f"blocks.{number}" for number in range(10)]
    assert names_of(Wide()) == [*blocks, "twice", "head"]
    assert names_of(Memory()) == ["memory", "attention", "head"]
    assert names_of(mlp()) == ["0", "2"]
    assert names_of(nn.Linear(3, 3)) == []
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    assert names_of(layer)[0] == "self_attn"
    assert "self_attn.out_proj" not in names_of(layer)


def test_small_modules_and_those_that_share_a_parameter_stay_with_their_parent() -> None:
    make, _ = CASES["tied weights"]
    assert names_of(make()) == ["head"]
    assert names_of(nn.Sequential(nn.Linear(100, 100), nn.LayerNorm(4))) == ["0"]
    assert names_of(nn.ModuleList([nn.Linear(2, 2), nn.ParameterList([torch.ones(4)])])) == ["0"]
    inner = nn.Linear(2, 2)
    shared = nn.Sequential(*(nn.Sequential(inner, nn.Linear(2, 2)) for _ in range(2)))
    assert names_of(shared) == ["0.1", "1.1"]


def count_whole(net: nn.Module) -> int:
    """Count the elements of parameters that are whole now, with their gradients."""
    whole = [one for one in net.parameters() if not isinstance(one, DTensor)]
    return sum(one.numel() * (1 + (one.grad is not None)) for one in whole)


def count_elements() -> dict[str, Any]:
    """Train on each rank of a gang; count what it has of a network and its optimizer."""
    engine = context.require()
    torch.distributed.init_process_group()
    net = Wide().double()
    given = [weakref.ref(parameter) for parameter in net.parameters()]
    gathered = []
    for block in net.blocks:
        block.register_forward_hook(lambda *_: gathered.append(count_whole(net)))
    ranks = Ranks(engine.rank, (0.5, 0.3, 0.2), engine.device)
    options = TrainingOptions(
        mini_batch_size=20, max_epochs=1, strategy="fsdp", execution_environment="parallel"
    )
    training = Training(net, samples(), nn.CrossEntropyLoss(), options, ranks, Watcher())
    training.run()
    parameters = list(net.parameters())
    moments = [
        value
        for values in training._optimizer.state.values()
        for value in values.values()
        if value.dim()
    ]
    return {
        "whole": sum(parameter.numel() for parameter in parameters),
        "own": sum(parameter.to_local().numel() for parameter in parameters),
        "stored": sum(
            parameter.to_local().untyped_storage().nbytes() // 8 for parameter in parameters
        ),
        "moments": sum(value.to_local().numel() for value in moments),
        "alive": sum(ref() is not None for ref in given),
        "gathered": max(gathered),
    }


def test_each_rank_has_a_third_of_the_parameters_and_of_the_optimizers_state(trio: Pool) -> None:
    found = list(mgpu.spmd(count_elements, pool=trio))

    whole = found[0]["whole"]
    assert sum(one["own"] for one in found) == whole
    for one in found:
        assert 0.3 * whole < one["own"] < 0.4 * whole
        assert one["stored"] < 0.4 * whole
        assert one["moments"] == 2 * one["own"]
        assert not one["alive"]
        assert 0 < one["gathered"] < whole / 5


def count_reductions(num_parts: int) -> int:
    """Train on each rank of a gang; how often gradients were exchanged."""
    engine = context.require()
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group()
    reduce, count = Reducing.__call__, 0

    def counted(*args: Any, **kwargs: Any) -> None:
        nonlocal count
        count += 1
        reduce(*args, **kwargs)

    options = TrainingOptions(
        mini_batch_size=20,
        max_epochs=1,
        strategy="fsdp",
        execution_environment="parallel",
        accumulate=num_parts,
    )
    ranks = Ranks(engine.rank, (0.5, 0.3, 0.2), engine.device)
    Reducing.__call__ = counted
    try:
        Training(mlp(), samples(), nn.CrossEntropyLoss(), options, ranks, Watcher()).run()
    finally:
        Reducing.__call__ = reduce
    return count


def test_parts_of_a_batch_are_exchanged_once(trio: Pool) -> None:
    once = list(mgpu.spmd(count_reductions, 1, pool=trio))

    assert once == [20] * 3  # two layers, ten steps; the trial of the first batch exchanges none
    assert list(mgpu.spmd(count_reductions, 3, pool=trio)) == once


def test_what_is_gathered_and_how_long_it_takes_is_told(trio: Pool) -> None:
    _, history = fit_fsdp(mlp(), samples(), trio, max_epochs=1)

    assert 0 < history.exchange_share < 1
    (note,) = history.notes
    assert "259 parameters are divided over 3 ranks and gathered in 2 pieces" in note
    assert note.endswith("the largest has 208.")
    alone = fit_fsdp(mlp(), samples(), trio, max_epochs=1, worker_load=1)
    assert alone[1].notes == ["strategy='fsdp': one rank trains, so it has all of it."]


# --- checkpoints -------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {
    "validation": samples(41),
    "average_decay": 0.9,
    "warm_up": 15,
    "clip_norm": 1.0,
}


@pytest.mark.parametrize("load", [None, [5, 3, 2]])
def test_a_resumed_training_is_the_same_to_the_last_bit(
    trio: Pool, tmp_path: Path, load: Any
) -> None:
    fit_here = partial(fit_fsdp, dropping(), samples(), trio, worker_load=load, **SETTINGS)
    whole = fit_here(max_epochs=4)
    fit_here(max_epochs=2, checkpoint_folder=tmp_path)

    again = fit_here(max_epochs=4, resume=tmp_path)

    assert difference(again, whole) == 0


def test_a_stop_within_an_epoch_resumes_to_the_last_bit(trio: Pool, tmp_path: Path) -> None:
    whole = fit_fsdp(dropping(), samples(), trio, max_epochs=3)
    stop = [lambda row: row["step"] == 13]
    options = {"max_epochs": 3, "checkpoint_folder": tmp_path}

    _, stopped = fit_fsdp(dropping(), samples(), trio, callbacks=stop, **options)
    assert stopped.stopped == "stopped when asked to"
    assert 13 < len(stopped.steps) < 18

    assert difference(fit_fsdp(dropping(), samples(), trio, resume=True, **options), whole) == 0


@pytest.mark.parametrize("name", ["tied weights", "parameter groups"])
def test_any_strategy_and_number_of_ranks_goes_on_with_a_checkpoint(
    trio: Pool, tmp_path: Path, name: str
) -> None:
    make, options = CASES[name]
    settings = {**SETTINGS, **options, "max_epochs": 4}
    whole = fit(make(), samples(), **settings)
    places = {
        "one device": (None, {}),
        "ddp": (trio, {}),
        "fsdp": (trio, {"strategy": "fsdp"}),
        "two": (trio, {"strategy": "fsdp", "worker_load": 2}),
    }

    for before, after in [("fsdp", place) for place in places] + [("one device", "fsdp")]:
        folder = tmp_path / f"{before}, {after}"
        for place, more in ((before, {"max_epochs": 2}), (after, {"resume": folder})):
            pool, extra = places[place]
            again = fit(
                make(), samples(), pool, checkpoint_folder=folder, **settings | extra | more
            )
        assert difference(again, whole) < LEAST, (before, after)


# --- a rank that dies, groups that end ---------------------------------------------------


def test_a_training_goes_on_after_a_death(trio: Pool, tmp_path: Path, capsys: Any) -> None:
    whole = fit_fsdp(dropping(), samples(), trio, max_epochs=3)
    forward = partial(die_once, str(tmp_path / "count"), 15)

    again = fit_fsdp(
        dropping(),
        samples(),
        trio,
        max_epochs=3,
        forward=forward,
        checkpoint_folder=tmp_path,
        max_restarts=1,
    )

    assert difference(again, whole) == 0
    assert "The training starts again." in capsys.readouterr().out


def test_a_death_is_told_and_the_pool_trains_again(trio: Pool, tmp_path: Path) -> None:
    with pytest.raises(EngineDiedError, match=r"The engine of rank 1 .*SIGKILL"):
        fit_fsdp(
            mlp(),
            samples(),
            trio,
            max_epochs=ENDLESS,
            forward=partial(die_once, str(tmp_path / "count"), 15),
        )

    assert difference(fit_fsdp(mlp(), samples(), trio), fit(mlp(), samples())) < LEAST


def test_a_cancelled_training_leaves_a_pool_that_trains(trio: Pool) -> None:
    pids = [engine.pid for engine in trio.engines]

    assert begin(trio, strategy="fsdp").cancel()

    assert difference(fit_fsdp(mlp(), samples(), trio), fit(mlp(), samples())) < LEAST
    assert [engine.pid for engine in trio.engines] == pids


def test_a_wish_ends_all_ranks_at_one_step(trio: Pool) -> None:
    future = begin(trio, strategy="fsdp")

    future.request_stop()

    net, history = future.result(60)
    assert history.stopped == "stopped when asked to"
    wanted = fit(
        mlp(), samples(), max_epochs=ENDLESS, learning_rate=0.001, callbacks=[last(history)]
    )
    assert len(history.steps) == len(wanted[1].steps)
    assert difference((net, history), wanted) < LEAST


def last(history: Any) -> Any:
    """Make a callback that ends a training on one device after the same step."""
    step = len(history.steps) - 3  # what it says is heard so much later
    return lambda row: row["step"] == step


# --- predictions -------------------------------------------------------------------------


@pytest.mark.parametrize(("load", "num"), [([5, 3, 2], 203), (None, 2)])
def test_a_divided_network_predicts_what_a_whole_one_does(trio: Pool, load: Any, num: int) -> None:
    inputs, _ = samples(num)
    options = TrainingOptions(
        execution_environment="parallel", strategy="fsdp", mini_batch_size=20, worker_load=load
    )
    torch.manual_seed(0)
    net = Wide().double()

    found = mgpu.predict(net, inputs, options, pool=trio)

    assert torch.allclose(found, net(inputs), atol=LEAST)
    assert not found.requires_grad
    names = mgpu.classify(net, inputs, ["a", "b", "c"], options, pool=trio)
    assert names == ["abc"[place] for place in net(inputs).argmax(1).tolist()]


# --- what is refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"execution_environment": "auto"}, "execution_environment is one device"),
        ({"worker_load": "auto"}, "worker_load='auto' measures the whole network"),
        ({"find_unused_parameters": True}, "find_unused_parameters lets each rank leave out"),
        ({"backend": "mpi"}, "mpi cannot divide sums"),
    ],
)
def test_options_that_contradict_it_are_refused(options: dict[str, Any], words: str) -> None:
    settings = {"execution_environment": "parallel", **options}
    with pytest.raises(ValueError, match=f"strategy is 'fsdp', but {words}"):
        TrainingOptions(strategy="fsdp", **settings)


def scaled() -> nn.Module:
    net = mlp()
    net[0].scale = nn.Parameter(torch.ones(()))
    return net


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (nn.ReLU(), "no parameters that can be trained"),
        (scaled(), "the parameter '0.scale' has no dimension"),
        (nn.Sequential(nn.Linear(12, 3), nn.Linear(3, 3).double()), "'0.bias' is float32"),
        (nn.LazyLinear(3), "the size of 'weight' is not known yet"),
    ],
    ids=["empty", "scalar", "two types", "lazy"],
)
def test_networks_that_cannot_be_divided_are_refused(
    trio: Pool, net: nn.Module, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        fit_fsdp(net, samples(), trio)


class Partial(nn.Module):
    """A network of which one rank leaves out a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(2))
        self.head = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [layer(x) for layer in self.layers]
        return self.head(found[0] if os.environ["RANK"] == "1" else sum(found))


def test_parameters_that_one_rank_does_not_use_are_named_at_the_start(trio: Pool) -> None:
    with pytest.raises(ValueError, match=r"does not depend on .*: layers.1.weight, layers.1.bias"):
        fit_fsdp(Partial().double(), samples(), trio)

    assert len(fit_fsdp(mlp(), samples(), trio)[1].steps) == 20


class Borrowing(nn.Module):
    """A network that uses a layer's weights without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.first(x), self.second.weight, self.second.bias)


def test_weights_that_are_used_without_their_layer_are_explained(trio: Pool) -> None:
    with pytest.raises(RuntimeError) as caught:
        fit_fsdp(Borrowing().double(), samples(), trio)

    assert "a layer has its parameters only while it, or the block" in "".join(
        caught.value.__notes__
    )


def test_an_optimizer_that_needs_whole_parameters_is_explained(trio: Pool) -> None:
    with pytest.raises(RuntimeError) as caught:
        fit_fsdp(mlp(), samples(), trio, optimizer=torch.optim.Adafactor)

    assert "Adafactor works on parts of parameters" in "".join(caught.value.__notes__)


def test_a_loss_that_is_not_finite_names_rank_and_step(trio: Pool) -> None:
    inputs, targets = samples()
    inputs[37] = torch.nan

    with pytest.raises(FloatingPointError, match=r"at step 2 on rank 2\."):
        fit_fsdp(mlp(), (inputs, targets), trio, shuffle="never")
