"""What `train` takes: forms of data and metrics, options, losses; `predict` and `classify`."""

import importlib.util
import math
import os
import random
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler
from training import NUM_CLASSES, NUM_FEATURES, difference, fit, mlp, samples

from jupyter_mgpu import TrainingOptions, classify, parpool, predict, spmd, train
from jupyter_mgpu.pool import Pool

LEAST = 1e-10


class Rows(Dataset):
    """The samples, one by one."""

    def __init__(self, num: int = 203) -> None:
        self.inputs, self.targets = samples(num)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, row: int) -> Any:
        return self.inputs[row], self.targets[row]


class Noisy(Rows):
    """Samples with other noise each time they are read, as augmentation makes it."""

    def __getitem__(self, row: int) -> Any:
        noise = random.random() + np.random.rand() + torch.rand(1).double()
        return self.inputs[row] + noise, self.targets[row]


class Stream(IterableDataset):
    """The samples, one after the other."""

    def __init__(self, num: int = 203) -> None:
        self.num = num

    def __iter__(self) -> Any:
        return zip(*samples(self.num), strict=True)


class DividedStream(Stream):
    """A stream that divides itself, which `train` does already."""

    def __iter__(self) -> Any:
        return zip(*samples(20 + int(os.environ["RANK"])), strict=True)


def by_name(net: Any, batch: dict[str, Any]) -> tuple[Any, Any]:
    return net(batch["features"]), batch["label"]


def named() -> dict[str, torch.Tensor]:
    inputs, targets = samples()
    return {"features": inputs, "label": targets}


# --- forms of data -----------------------------------------------------------------------

FORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "arrays": (lambda: tuple(part.numpy() for part in samples()), {}),
    "a list of tensors": (lambda: list(samples()), {}),
    "a dict": (named, {"forward": by_name}),
    "a data set": (Rows, {}),
    "a data set, with workers": (Rows, {"num_workers": 2}),
    "a loader": (lambda: DataLoader(Rows(), 20), {"shuffle": "every-epoch", "drop_last": True}),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_data_gives_the_same_network(trio: Pool, form: str) -> None:
    make, options = FORMS[form]

    found = fit(mlp(), make(), trio, worker_load=[0.5, 0.3, 0.2], **options)

    assert difference(found, fit(mlp(), samples())) < LEAST


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_is_divided_by_train(trio: Pool, num_workers: int) -> None:
    loader = DataLoader(Stream(), num_workers=num_workers)
    wanted = fit(mlp(), samples(), shuffle="never")

    found = fit(mlp(), loader, trio, mini_batch_size=20, drop_last=True)

    assert difference(found, wanted) < LEAST


def test_a_stream_that_differs_between_ranks_is_refused(trio: Pool) -> None:
    with pytest.raises(ValueError, match=r"Batch 1 .* has \[0, 1, 2\] samples on the ranks"):
        fit(mlp(), DividedStream(), trio)


class DividedRows(Rows):
    """A data set that divides itself, so that it is longer on some ranks."""

    def __len__(self) -> int:
        return 40 + int(os.environ.get("RANK", "0"))


@pytest.mark.parametrize("where", ["data", "validation data"])
def test_a_data_set_that_is_longer_on_some_ranks_is_refused(trio: Pool, where: str) -> None:
    data = DividedRows() if where == "data" else Rows()
    options = {} if where == "data" else {"validation": DataLoader(DividedRows(), 20)}

    with pytest.raises(ValueError, match=rf"The {where} has \[40, 41, 42\] samples on the ranks"):
        fit(mlp(), data, trio, **options)
    assert len(fit(mlp(), Rows(), trio)[1].steps) == 20


class WiderOnRankOne(Stream):
    """A stream whose samples have another shape on one rank."""

    def __iter__(self) -> Any:
        is_wider = os.environ["RANK"] == "1"
        for features, label in super().__iter__():
            yield (torch.cat([features, features[:1]]) if is_wider else features), label


def test_samples_of_another_shape_on_one_rank_are_told_and_all_ranks_freed(trio: Pool) -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        fit(mlp(), WiderOnRankOne(), trio)

    notes = "\n".join(caught.value.__notes__)
    assert "on rank 1" in notes
    assert "another shape on some ranks: rank 0: [12], []; rank 1: [13], []; rank 2:" in notes
    assert len(fit(mlp(), Rows(), trio)[1].steps) == 20


def test_the_settings_of_a_loader_are_taken_over(trio: Pool) -> None:
    loader = DataLoader(Rows(), batch_size=30, drop_last=False)
    wanted = fit(mlp(), samples(), mini_batch_size=30, drop_last=False, shuffle="never")

    found = fit(mlp(), loader, trio, mini_batch_size=None)

    assert difference(found, wanted) < LEAST


def test_a_sampler_chooses_the_same_samples_for_all_ranks(trio: Pool) -> None:
    loader = DataLoader(Rows(), 20, sampler=WeightedRandomSampler([1.0] * 203, 100))

    found = fit(mlp(), loader, trio)

    assert len(found[1].steps) == 10
    assert difference(found, fit(mlp(), loader)) < LEAST


def test_batches_of_a_loaders_own_are_refused(trio: Pool) -> None:
    loader = DataLoader(Rows(), batch_sampler=[[0, 1], [2, 3]])

    with pytest.raises(ValueError, match="batch_sampler of its own"):
        fit(mlp(), loader, trio)


def test_what_a_data_set_draws_depends_on_the_seed_and_not_on_who_loads_it(trio: Pool) -> None:
    one, same, other = (
        fit(mlp(), Noisy(), trio, seed=seed, num_workers=workers)
        for seed, workers in ((1, 0), (1, 2), (2, 0))
    )

    assert difference(one, same) == 0
    assert difference(one, other) > 0.01


# --- sizes -------------------------------------------------------------------------------


@pytest.mark.parametrize("num", [1, 2, 5, 41])
@pytest.mark.parametrize("form", [samples, Rows])
def test_few_samples_and_uneven_batches_train_as_on_one_device(
    trio: Pool, num: int, form: Any
) -> None:
    options = {"mini_batch_size": 4, "drop_last": False, "max_epochs": 3, "validation": samples(2)}

    found = fit(mlp(), form(num), trio, **options)

    assert difference(found, fit(mlp(), samples(num), **options)) < LEAST


def test_a_partial_batch_is_left_out_unless_it_is_the_only_one() -> None:
    steps = [len(fit(mlp(), samples(num), max_epochs=1)[1].steps) for num in (7, 20, 39, 40)]
    assert steps == [1, 1, 1, 2]
    assert len(fit(mlp(), samples(39), max_epochs=1, drop_last=False)[1].steps) == 2


@pytest.mark.parametrize("where", ["data", "validation"])
@pytest.mark.parametrize("empty", [samples(0), Rows(0)], ids=["tensors", "data set"])
def test_data_without_samples_is_refused_before_the_first_step(
    trio: Pool, where: str, empty: Any
) -> None:
    data = empty if where == "data" else samples()
    options = {"validation": empty} if where == "validation" else {}
    seen: list[Any] = []

    for pool in (None, trio):
        with pytest.raises(ValueError, match=r"data has no samples"):
            fit(mlp(), data, pool, callbacks=[seen.append], **options)

    assert not seen


def test_tensors_of_different_lengths_are_refused() -> None:
    inputs, targets = samples()
    with pytest.raises(ValueError, match=r"different lengths: \[202, 203\]"):
        fit(mlp(), (inputs, targets[1:]))


# --- options, losses ---------------------------------------------------------------------

CONTRADICTIONS: dict[str, dict[str, Any]] = {
    "execution_environment is 'multigpu'": {"execution_environment": "multigpu"},
    "strategy is 'fsdp', but execution_environment is one device": {"strategy": "fsdp"},
    "strategy is 'pipeline', but execution_environment is one device": {"strategy": "pipeline"},
    "strategy is 'dp', but it may be": {"strategy": "dp"},
    "the function sets the rate itself": {"optimizer": torch.optim.SGD, "learning_rate": 0.1},
    "cannot be scaled": {"optimizer": torch.optim.SGD, "scale": "linear"},
    "clip_norm is 0": {"clip_norm": 0.0},
    "there is no validation data": {"output_network": "best-validation"},
    "there is no checkpoint_folder": {"resume": True},
    "accumulate is 4": {"mini_batch_size": 2, "accumulate": 4},
    "average_decay is 1": {"average_decay": 1.0},
    "mini_batch_size is 0": {"mini_batch_size": 0},
    "max_epochs is 1.5": {"max_epochs": 1.5},
    "num_workers is -1": {"num_workers": -1},
    "on_bad_loss is 'ignore'": {"on_bad_loss": "ignore"},
}


@pytest.mark.parametrize("words", CONTRADICTIONS)
def test_options_that_cannot_be_meant_are_refused_when_they_are_made(words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TrainingOptions(**CONTRADICTIONS[words])


def test_what_is_no_network_or_no_loss_is_refused() -> None:
    with pytest.raises(TypeError, match="net is a int"):
        train(3, samples(), nn.CrossEntropyLoss())
    with pytest.raises(TypeError, match="loss is a str"):
        train(mlp(), samples(), "mse")
    with pytest.raises(TypeError, match="The data is a int"):
        fit(mlp(), 3)


def test_numbers_of_another_type_than_the_networks_are_told(trio: Pool) -> None:
    inputs, targets = samples()[0].float(), samples()[1]
    words = "inputs are float32, the network is float64"

    for pool in (None, trio):
        for call in (
            lambda pool: fit(mlp(), (inputs, targets), pool),
            lambda pool: predict(mlp(), inputs, on(pool), pool=pool),
        ):
            with pytest.raises(RuntimeError) as caught:
                call(pool)
            assert any(words in note for note in caught.value.__notes__)


def test_lists_of_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match=r"a tuple of list, list, .* numpy.asarray"):
        fit(mlp(), ([[1.0, 2.0]], [1]))


class Spare(nn.Module):
    """A network with a layer that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.used = mlp()
        self.spare = nn.Linear(2, 2).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def test_unused_parameters_are_named_or_allowed(trio: Pool) -> None:
    with pytest.raises(ValueError, match=r"these parameters: spare\.weight, spare\.bias"):
        fit(Spare(), samples(), trio)

    found = fit(Spare(), samples(), trio, find_unused_parameters=True)
    assert difference(found, fit(Spare(), samples())) < LEAST


BAD_LOSSES: dict[str, Any] = {
    "a tensor of shape \\(7, 3\\)": lambda output, _: output,
    "a float": lambda output, _: float(output.sum()),
    "does not depend on any parameter": lambda output, _: output.detach().sum(),
}


@pytest.mark.parametrize("words", BAD_LOSSES)
def test_a_loss_that_is_no_number_of_the_network_is_refused(trio: Pool, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        fit(mlp(), samples(), trio, loss=BAD_LOSSES[words], mini_batch_size=21)


def infinite_on_one_rank(output: Any, target: Any) -> Any:
    loss = nn.functional.cross_entropy(output, target)
    is_bad = os.environ.get("RANK", "1") == "1" and (target[0] == target[-1]).all()
    return loss * math.inf if is_bad else loss


def test_a_loss_that_is_not_finite_names_rank_and_step(trio: Pool) -> None:
    with pytest.raises(FloatingPointError, match=r"The loss is inf at step \d+ on rank 1\."):
        fit(mlp(), samples(), trio, loss=infinite_on_one_rank)


@pytest.mark.parametrize("pools", [0, 1])
def test_bad_losses_end_the_training_or_are_skipped_where_asked(trio: Pool, pools: int) -> None:
    pool = trio if pools else None
    options = {"loss": infinite_on_one_rank, "max_epochs": 3}

    net, history = fit(mlp(), samples(), pool, on_bad_loss="stop", **options)
    assert history.stopped == "the loss was not finite"
    assert not math.isfinite(history["loss"][-1])
    assert all(part.isfinite().all() for part in net.state_dict().values())

    net, history = fit(mlp(), samples(), pool, on_bad_loss="skip", **options)
    assert len(history.steps) == 30
    assert not all(map(math.isfinite, history["loss"]))
    assert all(part.isfinite().all() for part in net.state_dict().values())


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_trains_as_on_one_device_within_its_rounding(
    trio: Pool, precision: str
) -> None:
    inputs, targets = samples()
    data = inputs.float(), targets
    options: dict[str, Any] = {"precision": precision, "clip_norm": 1.0, "validation": data}
    options |= {"optimizer": "sgd", "max_epochs": 5}

    found = fit(mlp().float(), data, trio, **options)

    exact = fit(mlp().float(), data, **{**options, "precision": "float32"})
    assert 0 < difference(found, exact) < 0.02
    assert difference(found, fit(mlp().float(), data, **options)) < 0.02
    assert found[0][0].weight.dtype == torch.float32


def test_a_batch_that_is_no_pair_asks_for_forward() -> None:
    with pytest.raises(TypeError, match="Give forward="):
        fit(mlp(), named())


# --- what is measured --------------------------------------------------------------------


class Worst:
    """The largest loss of any sample, collected as torchmetrics' objects collect."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.found: list[torch.Tensor] = []

    def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
        self.found.append(nn.functional.cross_entropy(output, target, reduction="none"))

    def compute(self) -> torch.Tensor:
        return torch.cat(self.found).max()


def largest(output: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return output.max(1).values.mean()


def test_metrics_are_those_of_one_device(trio: Pool) -> None:
    options = {
        "metrics": {"largest": largest, "worst": Worst()},
        "validation": Rows(41),
        "validation_frequency": 4,
    }

    found = fit(mlp(), samples(), trio, **options)

    assert difference(found, fit(mlp(), samples(), **options)) < LEAST
    assert [row["step"] for row in found[1].validations] == [4, 8, 12, 16, 20]
    net, (inputs, targets) = found[0], samples(41)
    losses = nn.functional.cross_entropy(net(inputs), targets, reduction="none").detach()
    best = min(found[1].validations, key=lambda row: row["validation_loss"])
    assert math.isclose(best["validation_loss"], float(losses.mean()))
    assert math.isclose(best["validation_worst"], float(losses.max()))


def test_a_collecting_metric_needs_validation_data_and_an_unknown_one_a_function() -> None:
    with pytest.raises(ValueError, match=r"'worst' has update\(\) and compute\(\)"):
        fit(mlp(), samples(), metrics={"worst": Worst()})
    with pytest.raises(ValueError, match="'f1' is not known by its name"):
        fit(mlp(), samples(), metrics=["f1"])


def test_a_metric_that_is_no_number_is_named(trio: Pool) -> None:
    with pytest.raises(TypeError, match=r"The metric 'all' is a tensor of shape \(7, 3\)"):
        fit(mlp(), samples(), trio, mini_batch_size=21, metrics={"all": lambda output, _: output})


def test_a_scheduler_that_needs_a_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="ReduceLROnPlateau, which needs a loss"):
        fit(mlp(), samples(), schedule=torch.optim.lr_scheduler.ReduceLROnPlateau)


def test_patience_ends_the_training_with_the_best_network(trio: Pool) -> None:
    options = {"validation": samples(40), "validation_patience": 2, "learning_rate": 0.5}

    net, history = fit(mlp(), samples(), trio, max_epochs=50, **options)

    losses = history["validation_loss"]
    inputs, targets = samples(40)
    assert history.stopped == "the validation loss did not get better"
    assert len(losses) < 50
    last_loss = nn.functional.cross_entropy(net(inputs), targets).item()
    assert math.isclose(last_loss, min(losses))


def test_callbacks_see_each_step_and_may_end_the_training() -> None:
    seen: list[int] = []

    def end_at_seven(row: dict[str, Any]) -> bool:
        seen.append(row["step"])
        return row["step"] == 7

    _, history = fit(mlp(), samples(), callbacks=[end_at_seven], max_epochs=50)

    assert history.stopped == "stopped when asked to"
    assert [row["step"] for row in history.steps] == seen == list(range(1, len(seen) + 1))
    assert 7 < len(seen) < 11


def test_a_history_has_curves_and_a_table() -> None:
    _, history = fit(mlp(), samples(), validation=samples(40), metrics=["accuracy"])

    frame = history.to_frame()
    assert len(history["loss"]) == len(frame) == 20
    assert frame["validation_loss"].count() == 2
    assert "20 steps" in repr(history)
    with pytest.raises(KeyError, match="'f1' was asked for, but measured were: accuracy"):
        history["f1"]


@pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed"
)
def test_what_is_reported_is_written_for_tensorboard(trio: Pool, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, history = fit(mlp(), samples(), trio, log_dir=tmp_path, validation=samples(40))

    events = EventAccumulator(str(tmp_path)).Reload()
    values = [event.value for event in events.Scalars("loss")]
    assert np.allclose(values, history["loss"])
    assert len(events.Scalars("validation_loss")) == 2


@pytest.fixture
def _without_tensorboard(trio: Pool, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Python finds no module where `sys.modules` says None."""
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    spmd(lambda: sys.modules.update(tensorboard=None), pool=trio)
    yield
    spmd(lambda: sys.modules.pop("tensorboard"), pool=trio)


@pytest.mark.usefixtures("_without_tensorboard")
def test_a_log_dir_without_tensorboard_says_what_to_install(trio: Pool, tmp_path: Path) -> None:
    for pool in (None, trio):
        with pytest.raises(ModuleNotFoundError, match=r"jupyter_mgpu\[tensorboard\]"):
            fit(mlp(), samples(), pool, log_dir=tmp_path)


# --- predict, classify -------------------------------------------------------------------


def on(pool: Pool | None, **options: Any) -> TrainingOptions:
    where = "cpu" if pool is None else "parallel"
    return TrainingOptions(execution_environment=where, mini_batch_size=10, **options)


INPUTS: dict[str, Any] = {
    "a tensor": lambda: samples()[0],
    "an array": lambda: samples()[0].numpy(),
    "what train takes": samples,
    "a data set": Rows,
    "a stream": Stream,
    "a loader": lambda: DataLoader(Rows(), 16, num_workers=1),
}


@pytest.mark.parametrize("form", INPUTS)
def test_predictions_stand_in_the_order_of_the_data(trio: Pool, form: str) -> None:
    net, expected = mlp(), mlp()(samples()[0]).detach()

    for pool, load in ((None, None), (trio, None), (trio, [0.6, 0.3, 0.1])):
        scores = predict(net, INPUTS[form](), on(pool, worker_load=load), pool=pool)
        assert torch.allclose(scores, expected, atol=LEAST)
    assert torch.equal(
        classify(net, INPUTS[form](), options=on(trio), pool=trio), expected.argmax(1)
    )


def test_a_stream_is_predicted_on_a_pool_that_has_never_trained() -> None:
    expected = mlp()(samples()[0]).detach()

    with parpool(3, name="untrained") as pool:
        for load in ([1, 1, 0], None):
            scores = predict(mlp(), Stream(), on(pool, worker_load=load), pool=pool)
            assert torch.allclose(scores, expected, atol=LEAST)


def test_classes_have_names(trio: Pool) -> None:
    names = ["cat", "dog", "fox"]
    inputs = samples(2)[0]

    found = classify(mlp(), inputs, names, on(trio), pool=trio)

    assert found == [names[number] for number in mlp()(inputs).argmax(1)]


Pair = namedtuple("Pair", ["scores", "parts"])


class Nested(nn.Module):
    """Returns nested outputs; it drops features while it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Dropout(0.5), mlp())

    def forward(self, x: torch.Tensor) -> Pair:
        scores = self.net(x)
        return Pair(scores, {"sum": scores.sum(1), "both": [x, (scores * 2,)]})


def test_nested_outputs_keep_their_form_and_the_network_its_modes(trio: Pool) -> None:
    net = Nested()
    net.net[1].eval()
    inputs, expected = samples()[0], mlp()(samples()[0]).detach()

    for pool in (None, trio):
        found = predict(net, inputs, on(pool), pool=pool)

        assert type(found).__name__ == "Pair"
        assert torch.allclose(found.scores, expected, atol=LEAST)
        assert torch.allclose(found.parts["sum"], expected.sum(1), atol=LEAST)
        assert torch.equal(found.parts["both"][0], inputs)
        assert torch.allclose(found.parts["both"][1][0], expected * 2, atol=LEAST)
    assert (net.training, net.net[0].training, net.net[1].training) == (True, True, False)


def test_an_own_forward_takes_batches_apart(trio: Pool) -> None:
    scores = predict(mlp(), named(), on(trio, forward=by_name), pool=trio)

    assert torch.allclose(scores, mlp()(samples()[0]), atol=LEAST)


class Summed(nn.Module):
    """Returns one number for a whole batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum()


def test_outputs_without_a_row_per_sample_and_empty_data_are_refused(trio: Pool) -> None:
    for pool in (None, trio):
        with pytest.raises(ValueError, match="needs one row for each of the"):
            predict(Summed(), samples()[0], on(pool), pool=pool)
        with pytest.raises(ValueError, match="The data has no samples"):
            predict(mlp(), samples(0)[0], on(pool), pool=pool)
        with pytest.raises(ValueError, match="The data has no samples"):
            predict(mlp(), Stream(0), on(pool), pool=pool)
    with pytest.raises(TypeError, match="net is a list"):
        predict([], samples()[0])


class Numbers(Dataset):
    """Inputs that say which they are."""

    def __len__(self) -> int:
        return 300

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.full((NUM_FEATURES,), float(row), dtype=torch.float64)


class Counting(nn.Module):
    """Keeps the largest batch that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.largest = max(self.largest, len(x))
        return x[:, :NUM_CLASSES]


def test_only_a_batch_at_a_time_is_computed() -> None:
    net = Counting()

    found = predict(net, Numbers(), on(None))

    assert net.largest == 10
    assert found[:, 0].tolist() == list(range(300))
