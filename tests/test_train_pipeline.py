"""`train` with strategy "pipeline": the network of one device, in stages on several ranks."""

import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import test_train_life as life
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody names it
import training
from test_train_life import begin, difference_after_a_stop, dropping
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from training import (
    LEAST,
    NUM_CLASSES,
    NUM_FEATURES,
    difference,
    fit,
    mlp,
    samples,
    tied,
    trained_both_ways,
)

import jupyter_mgpu as mgpu
from jupyter_mgpu import TrainingOptions
from jupyter_mgpu.errors import EngineDiedError
from jupyter_mgpu.on_engine import context
from jupyter_mgpu.on_engine.training.loop import Training
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.strategies.pipelining.cuts import cuts_by_size
from jupyter_mgpu.on_engine.training.strategies.pipelining.links import links_of, skeleton_of
from jupyter_mgpu.on_engine.training.strategies.pipelining.sizes import sizes_of
from jupyter_mgpu.on_engine.training.watching import Watcher
from jupyter_mgpu.pool import Pool

SCHEDULES = ("gpipe", "1f1b")


def deep() -> nn.Module:
    """Layers in layers, so that three ranks get some each."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    outer = nn.Linear(NUM_FEATURES, 16), nn.Tanh(), inner, nn.Tanh(), nn.Linear(16, NUM_CLASSES)
    return nn.Sequential(*outer).double()


class Residual(nn.Module):
    """A block that must stay whole, and functions between children."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        found = x + self.second(torch.tanh(self.first(x)))
        return found if scale is None else found * scale


class Chain(nn.Module):
    """Calls its children one after the other, as most people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(NUM_FEATURES, 16)
        self.offset = nn.Parameter(torch.ones(16))
        self.blocks = nn.ModuleList([Residual(), Residual()])
        self.head = nn.Linear(16, NUM_CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x.view(x.size(0), -1)) + self.offset)
        for block in self.blocks:
            x = block(x, scale=None)
        return self.head(x)


def chain() -> nn.Module:
    torch.manual_seed(0)
    return Chain().double()


def normed() -> nn.Module:
    first, norm, act, last = training.normed()
    return nn.Sequential(first, norm, act, nn.Linear(16, 16), last).double()


class Recurrent(nn.Module):
    """Takes one of two outputs of a child."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(4, 8, batch_first=True)
        self.head = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, NUM_CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found, _ = self.memory(x.view(-1, 3, 4))
        return self.head(found[:, -1])


def recurrent() -> nn.Module:
    torch.manual_seed(0)
    return Recurrent().double()


class First(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0]


def transformer() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3, nn.LayerNorm(8))
    embedded = nn.Unflatten(1, (3, 4)), nn.Linear(4, 8), encoder
    return nn.Sequential(*embedded, First(), nn.Linear(8, NUM_CLASSES)).double()


def in_place() -> nn.Module:
    torch.manual_seed(0)
    first, _, last = mlp()
    return nn.Sequential(first, nn.ReLU(inplace=True), last, nn.ReLU(inplace=True)).double()


def frozen() -> nn.Module:
    net = deep()
    net[0].requires_grad_(requires_grad=False)
    return net


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "nested layers": (deep, {"accumulate": 5}),
    "a chain of children": (chain, {}),
    "clipped tied weights": (tied, {"clip_norm": 0.1}),
    "as many microbatches as samples": (deep, {"accumulate": 20, "drop_last": False}),
    "normalization of microbatches": (normed, {"accumulate": 5}),
    "frozen layers": (frozen, {}),
    "layers that change their input": (in_place, {}),
    "recurrence": (recurrent, {}),
    "a transformer": (transformer, {"optimizer": "sgd"}),
}
SHARED = [case for case in training.CASES if case != "synchronised normalization"]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("world", ["two", "three"])
@pytest.mark.parametrize("case", SHARED)
def test_stages_train_the_network_of_one_device(
    trio: Pool, case: str, world: str, schedule: str
) -> None:
    found, wanted = trained_both_ways(
        trio, case, world, strategy="pipeline", pipeline_schedule=schedule
    )

    assert len(found[1].steps) >= 50
    assert difference(found, wanted) < LEAST


@pytest.mark.parametrize(("world", "schedule"), [("two", "gpipe"), ("three", "1f1b")])
@pytest.mark.parametrize("case", CASES)
def test_what_is_special_to_stages_changes_no_number(
    trio: Pool, case: str, world: str, schedule: str
) -> None:
    found, wanted = trained_both_ways(
        trio, case, world, CASES, strategy="pipeline", pipeline_schedule=schedule
    )

    assert len(found[1].steps) >= 50
    assert difference(found, wanted) < LEAST


# --- who has and loads what --------------------------------------------------------------


def look_inside(splits: list[str] | None) -> dict[str, Any]:
    """Train on each rank of a gang; say what it has of the network and its optimizer."""
    engine = context.require()
    torch.distributed.init_process_group()
    ranks = Ranks(engine.rank, (1 / 3,) * 3, engine.device)
    options = TrainingOptions(
        execution_environment="parallel",
        strategy="pipeline",
        pipeline_splits=splits,
        mini_batch_size=20,
        max_epochs=1,
        average_decay=0.9,
    )
    running = Training(deep(), samples(), nn.CrossEntropyLoss(), options, ranks, Watcher())
    whole = running.run()
    net = running._strategy.net
    return {
        "here": [name for name, one in net.named_parameters() if not one.is_meta],
        "updated": len(running._optimizer.state_dict()["state"]),
        "returned": list(whole),
    }


@pytest.mark.parametrize(
    ("splits", "wanted"),
    [(["2.2", "4"], [["0"], ["2.2"], ["4"]]), (["2", "3"], [["0"], ["2.0", "2.2"], ["4"]])],
)
def test_each_rank_has_its_own_layers_only(trio: Pool, splits: Any, wanted: Any) -> None:
    wanted[0] += ["2.0"] if splits == ["2.2", "4"] else []

    found = list(mgpu.spmd(look_inside, splits, pool=trio))

    layers = [[f"{layer}.{kind}" for layer in own for kind in ("weight", "bias")] for own in wanted]
    assert [each["here"] for each in found] == layers
    assert [each["updated"] for each in found] == [len(own) for own in layers]
    assert found[0]["returned"] == list(deep().state_dict())


def test_by_itself_stages_become_about_equal(trio: Pool) -> None:
    found = list(mgpu.spmd(look_inside, None, pool=trio))

    assert sorted(name for each in found for name in each["here"]) == sorted(deep().state_dict())
    assert all(each["here"] for each in found)


def cuts_of(net: nn.Module, example: Any, batch_rows: int, num_stages: int) -> list[str]:
    skeleton = skeleton_of(net)
    links = links_of(skeleton)
    sizes = sizes_of(skeleton, links, example, batch_rows)
    return [links[place].name for place in cuts_by_size(sizes, num_stages)]


def test_weights_and_outputs_decide_where_a_network_is_cut() -> None:
    large = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)), nn.Linear(8, 4000))
    assert cuts_of(large, None, 32, 2) == ["4"]
    assert cuts_of(large, None, 32, 3) == ["2", "4"]
    encoder = transformer()
    assert cuts_of(encoder, None, 20, 3) == ["2.layers.1", "2.layers.2"]
    images = nn.Sequential(
        *(nn.Conv2d(1, 1, 3, padding=1) for _ in range(4)), nn.Flatten(), nn.Linear(64 * 64, 10)
    )
    assert cuts_of(images, None, 512, 2) == ["4"]
    assert cuts_of(images, torch.zeros(1, 1, 64, 64), 512, 2) == ["3"]


class Noted(Dataset):
    """Samples; who loads one is noted in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.inputs, self.targets = samples()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, row: int) -> Any:
        with self.path.open("a") as file:
            file.write(os.environ.get("RANK", "") + "\n")
        return self.inputs[row], self.targets[row]


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(zip(*samples(), strict=True))


class Backwards:
    """An order of one's own."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Any:
        return iter(reversed(range(self.size)))


def test_a_rank_between_the_others_loads_no_samples(trio: Pool, tmp_path: Path) -> None:
    for data in (
        Noted(tmp_path / "a"),
        DataLoader(Noted(tmp_path / "b"), 20, sampler=Backwards(203)),
    ):
        found = fit(deep(), data, trio, strategy="pipeline", validation=data)

        assert difference(found, fit(deep(), data, validation=data)) < LEAST
    for name in ("a", "b"):
        assert set((tmp_path / name).read_text().split()) == {"0", "2"}


def test_streams_and_loading_processes_work(trio: Pool) -> None:
    for data in (Stream(), DataLoader(TensorDataset(*samples()), 20, num_workers=1)):
        found = fit(deep(), data, trio, strategy="pipeline", drop_last=False)

        assert difference(found, fit(deep(), data, drop_last=False)) < LEAST


class Seen:
    """A metric that has a value when it has seen all."""

    def reset(self) -> None:
        self.rows: list[int] = []

    def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
        self.rows = [*getattr(self, "rows", []), *(output.argmax(1) == target).tolist()]

    def compute(self) -> float:
        return sum(self.rows)


def test_a_stage_may_have_nothing_to_train(trio: Pool) -> None:
    found = fit(frozen(), samples(), trio, strategy="pipeline", pipeline_splits=["2", "4"])

    (note,) = found[1].notes
    assert "the ranks begin with '0', '2.0', '4'; a batch goes through them in 5 micro" in note

    assert difference(found, fit(frozen(), samples())) < LEAST


def test_metrics_are_those_of_one_device(trio: Pool) -> None:
    options = {"validation": samples(41), "metrics": {"seen": Seen(), "right": right}}

    found = fit(deep(), samples(), trio, strategy="pipeline", **options)

    wanted = fit(deep(), samples(), **options)
    assert difference(found, wanted) < LEAST
    assert found[1]["validation_seen"] == wanted[1]["validation_seen"]


def right(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.argmax(1) == target).double().mean()


# --- what is refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"forward": lambda net, batch: (net(batch[0]), batch[1])}, "forward= runs a whole"),
        ({"compile": True}, "compile=True compiles a whole"),
        ({"sync_batch_norm": True}, "ranks share a batch"),
        ({"scale": "linear"}, "scale='linear' counts ranks"),
        ({"precision": "fp16"}, "Choose 'bf16'"),
        ({"worker_load": [0.7, 0.2, 0.1]}, "worker_load divides batches"),
        ({"worker_load": "auto"}, "worker_load divides batches"),
        ({"pipeline_schedule": "zigzag"}, "pipeline_schedule is 'zigzag'"),
        ({"execution_environment": "auto"}, "execution_environment is one device"),
        ({"strategy": "ddp", "pipeline_splits": ["2"]}, "pipeline_splits was given"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TrainingOptions(**{"execution_environment": "parallel", "strategy": "pipeline", **options})


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(NUM_FEATURES, 3), nn.Linear(NUM_FEATURES, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) + self.b(x)


class Deciding(Branching):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) if x.sum() > 0 else self.b(x)


class Dropping(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self[2](F.dropout(self[1](self[0](x)), training=self.training))


class Gradless(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self[0](x)
        return self[2](self[1](x))


class Counting(nn.Sequential):
    count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self[2](self[1](self[0](x)))


def hooked() -> nn.Module:
    net = mlp()
    net.register_forward_hook(lambda *_: None)
    return net


class Timing(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self[2](self[1](self[0](x) * torch.arange(16)))


class Skipping(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self[0](x)
        return self[2](x if random.random() < 0.5 else self[1](x))


@pytest.mark.parametrize(
    ("net", "options", "words"),
    [
        (Branching(), {}, r"has one piece.*worker_load=1"),
        (mlp()[:2], {}, "has 2 pieces"),
        (Deciding(), {}, "the forward of Deciding cannot be read without data"),
        (Dropping(*mlp()), {}, "Dropping does other things in training than in evaluation"),
        (Gradless(*mlp()), {}, r"Gradless changes torch's modes \(no_grad"),
        (Skipping(*mlp()), {}, "Skipping draws random numbers of its own"),
        (Counting(*mlp()), {}, "Counting changes its attribute 'count'"),
        (hooked(), {}, "Sequential has hooks of its own"),
        (Timing(*mlp()), {}, "Timing makes tensors of its own"),
        (normed(), {}, "'1' looks at whole batches.*by accumulate="),
        (normed(), {"accumulate": 3}, "a batch of 20 cannot be cut into 3 equal"),
        (nn.Sequential(nn.LazyLinear(3), *mlp()[:2]), {}, "the size of '0.weight' is not known"),
        (deep(), {"pipeline_splits": ["2"]}, "names 1 children, but 3 ranks"),
        (deep(), {"pipeline_splits": ["2", "9"]}, "has '9', but .* before: 1, 2.0, 2.1, 2.2, 3, 4"),
        (deep(), {"pipeline_splits": ["4", "2"]}, "not in the order"),
    ],
)
def test_networks_that_cannot_be_cut_are_refused_at_once(
    trio: Pool, net: Any, options: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        fit(net, samples(), trio, strategy="pipeline", **options)

    assert not hasattr(caught.value, "__notes__")  # an engine would have noted its rank


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.split, self.join, self.head = Split(), Join(), nn.Linear(NUM_FEATURES, NUM_CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.join(self.split(x)))


class Split(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


class Join(nn.Module):
    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return pair[0] + pair[1]


def test_a_network_is_not_cut_where_no_tensor_goes_on(trio: Pool) -> None:
    net = Pairs().double()
    found = fit(net, samples(), trio, strategy="pipeline", worker_load=2)
    assert difference(found, fit(net, samples())) < LEAST

    with pytest.raises(TypeError, match=r"begins with 'join', but a tuple goes on there"):
        fit(net, samples(), trio, strategy="pipeline", worker_load=2, pipeline_splits=["join"])


# --- bad input ---------------------------------------------------------------------------


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (1 // 0)


def failing_loss(output: Any, target: Any) -> Any:  # noqa: ARG001 - as a loss is called
    raise LookupError("of the loss")


def test_errors_keep_their_type_and_free_the_ranks(trio: Pool) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        fit(nn.Sequential(*mlp()[:2], Failing(), mlp()[2]), samples(), trio, strategy="pipeline")
    assert any("on rank" in note for note in caught.value.__notes__)
    assert not any("another shape" in note for note in caught.value.__notes__)
    with pytest.raises(LookupError, match="of the loss"):
        fit(mlp(), samples(), trio, strategy="pipeline", loss=failing_loss)
    with pytest.raises(TypeError, match="must be one number"):
        fit(mlp(), samples(), trio, strategy="pipeline", loss=nn.CrossEntropyLoss(reduction="none"))

    assert len(fit(mlp(), samples(), trio, strategy="pipeline")[1].steps) == 20


def test_bad_input_is_told(trio: Pool) -> None:
    inputs, targets = samples()
    with pytest.raises(TypeError, match=r"must be \(inputs, targets\)"):
        fit(mlp(), {"x": inputs, "y": targets}, trio, strategy="pipeline")
    with pytest.raises(RuntimeError, match="dtype") as caught:
        fit(mlp(), (inputs.float(), targets), trio, strategy="pipeline")
    assert any("x.float()" in note or "float32" in note for note in caught.value.__notes__)
    inputs[77] = torch.nan
    with pytest.raises(FloatingPointError, match=r"at step \d+ on rank 2"):
        fit(mlp(), (inputs, targets), trio, strategy="pipeline")


class Idle(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self[2](self[1](self[0](x)))


def test_parameters_without_a_gradient_are_named(trio: Pool) -> None:
    net = Idle(*mlp(), nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match=r"does not depend on these parameters: 3.weight, 3.bias"):
        fit(net, samples(), trio, strategy="pipeline")

    found = fit(net, samples(), trio, strategy="pipeline", find_unused_parameters=True)
    assert difference(found, fit(net, samples())) < LEAST


def by_length(pairs: Any) -> Any:
    inputs, targets = torch.utils.data.default_collate(pairs)
    return inputs.repeat_interleave(1 + int(targets[0] > 1), 0)[:, None, :], targets


class Lengths(Dataset):
    """Sequences whose length differs between batches."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> Any:
        return torch.ones(2 if row < 20 else 3, NUM_FEATURES, dtype=torch.float64), row % 3


class Last(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, -1]


def test_inputs_of_several_shapes_are_refused(trio: Pool) -> None:
    with pytest.raises(ValueError, match=r"have the shapes \(4, 3, 12\).*before had \(4, 2, 12\)"):
        fit(nn.Sequential(*deep(), Last()), Lengths(), trio, strategy="pipeline", shuffle="never")


# --- its life ----------------------------------------------------------------------------


SETTINGS = {**life.SETTINGS, "strategy": "pipeline"}


def test_a_resumed_training_is_the_same_to_the_last_bit(trio: Pool, tmp_path: Path) -> None:
    assert difference_after_a_stop(trio, tmp_path, **SETTINGS) == 0


def test_a_checkpoint_fits_any_strategy_and_number_of_ranks(trio: Pool, tmp_path: Path) -> None:
    whole = fit(tied(), samples(), max_epochs=4, **{**SETTINGS, "strategy": "ddp"})
    fit(tied(), samples(), trio, max_epochs=2, checkpoint_folder=tmp_path / "p", **SETTINGS)
    alone = {**SETTINGS, "strategy": "ddp"}
    fit(tied(), samples(), max_epochs=2, checkpoint_folder=tmp_path / "d", **alone)

    for folder, pool, options in (
        ("p", None, alone),
        ("p", trio, alone),
        ("p", trio, {**SETTINGS, "worker_load": 2}),
        ("d", trio, SETTINGS),
    ):
        again = fit(tied(), samples(), pool, max_epochs=4, resume=tmp_path / folder, **options)
        assert difference(again, whole) < LEAST


class DieOnce(nn.Module):
    """Kills its process at a pass by number, unless that has happened."""

    def __init__(self, mark: Path, number: int) -> None:
        super().__init__()
        self.mark, self.number = mark, number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and "RANK" in os.environ:
            count = int(self.mark.read_text()) if self.mark.exists() else 0
            self.mark.write_text(str(count + 1))
            if count == self.number:
                self.mark.with_suffix(".died").write_text(str(time.monotonic()))
                os.kill(os.getpid(), signal.SIGKILL)
        return x


def mortal(mark: Path, number: int = 90) -> nn.Module:
    first, act, last = mlp()
    return nn.Sequential(first, DieOnce(mark, number), act, last)


def test_a_death_is_told_with_rank_and_cause(trio: Pool, tmp_path: Path) -> None:
    with pytest.raises(EngineDiedError, match=r"The engine of rank 1 .*SIGKILL"):
        fit(
            mortal(tmp_path / "count"),
            samples(),
            trio,
            strategy="pipeline",
            pipeline_splits=["1", "3"],
            max_epochs=10**6,
        )

    assert time.monotonic() - float((tmp_path / "count.died").read_text()) < 5
    assert len(fit(mlp(), samples(), trio, strategy="pipeline")[1].steps) == 20


def test_a_training_goes_on_after_a_death_where_that_is_allowed(
    trio: Pool, tmp_path: Path, capsys: Any
) -> None:
    again = fit(
        mortal(tmp_path / "count"),
        samples(),
        trio,
        strategy="pipeline",
        pipeline_splits=["1", "3"],
        max_epochs=3,
        checkpoint_folder=tmp_path,
        max_restarts=1,
    )

    assert difference(again, fit(mortal(tmp_path / "none"), samples(), max_epochs=3)) < LEAST
    assert re.search(r"rank 1 .*SIGKILL.* The training starts again\.", capsys.readouterr().out)


def test_a_cancelled_training_frees_its_ranks(trio: Pool) -> None:
    pids = [engine.pid for engine in trio.engines]
    future = begin(trio, strategy="pipeline")

    assert future.cancel()

    assert future.cancelled()
    assert len(fit(deep(), samples(), trio, strategy="pipeline")[1].steps) == 20
    assert [engine.pid for engine in trio.engines] == pids


def test_a_future_ends_when_asked_to(trio: Pool) -> None:
    future = begin(trio, strategy="pipeline")

    future.request_stop()

    net, history = future.result(60)
    assert history.stopped == "stopped when asked to"
    assert 0 < history.exchange_share < 1
    scores = mgpu.predict(net, samples()[0])
    assert scores.shape == (203, NUM_CLASSES)


def test_predictions_come_from_stages_as_well(trio: Pool, tmp_path: Path) -> None:
    net, (inputs, _) = normed(), samples()
    fit_to = {"execution_environment": "parallel", "mini_batch_size": 50, "strategy": "pipeline"}
    options = TrainingOptions(**fit_to)
    wanted = mgpu.predict(net, inputs)
    for data in (inputs, samples(), Noted(tmp_path / "log"), Stream()):
        found = mgpu.predict(net, data, options, pool=trio)

        assert torch.allclose(found, wanted, rtol=0, atol=LEAST)
    assert set((tmp_path / "log").read_text().split()) == {"0"}
    assert mgpu.classify(net, inputs, None, options, pool=trio).equal(wanted.argmax(1))
    net = nn.Sequential(*mlp()[:2], nn.Identity())  # its last rank hands on what it receives
    found = mgpu.predict(net, inputs, options, pool=trio)
    assert torch.allclose(found, mgpu.predict(net, inputs), rtol=0, atol=LEAST)
    with pytest.raises(ValueError, match="'pipeline' on 3 ranks, but the network has one piece"):
        mgpu.predict(nn.Linear(NUM_FEATURES, 3), inputs, options, pool=trio)


def test_dropout_is_reproducible_for_a_seed(trio: Pool) -> None:
    one, same, other = (
        fit(dropping(), samples(), trio, strategy="pipeline", seed=seed) for seed in (1, 1, 2)
    )

    assert difference(one, same) == 0
    assert difference(one, other) > 0.01


def test_lower_precision_goes_over_the_ranks_as_well(trio: Pool) -> None:
    net = deep().float()
    data = samples()[0].float(), samples()[1]

    found = fit(net, data, trio, strategy="pipeline", precision="bf16")

    assert found[1]["loss"][-1] < found[1]["loss"][0]
    assert difference(found, fit(net, data, precision="bf16", accumulate=5)) < 0.05
