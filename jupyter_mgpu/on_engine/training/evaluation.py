"""Runs a network on a batch; loss and metrics over data that is not trained on."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.setup import Precision
from jupyter_mgpu.on_engine.training.sources import in_order, make_source, to_device
from jupyter_mgpu.on_engine.training.trees import leaves_of

Metric = Callable[[Any, Any], Any]


def accuracy(output: Any, target: Any) -> Any:
    """Return the share of samples whose largest output is the target's class."""
    return (output.argmax(1) == target).double().mean()


METRICS: Mapping[str, Metric] = {"accuracy": accuracy}


def is_collector(metric: Any) -> bool:
    """Tell whether a metric collects all data before it has a value, as torchmetrics' do."""
    return all(callable(getattr(metric, name, None)) for name in ("update", "compute", "reset"))


def chosen_metrics(options: TrainingOptions) -> dict[str, Metric]:
    """Return the metrics that are averaged over samples, by name.

    Raises:
        ValueError: If one is not known by its name alone.
    """
    asked = options.metrics
    if isinstance(asked, str):
        asked = (asked,)
    if isinstance(asked, Mapping):
        return {name: metric for name, metric in asked.items() if not is_collector(metric)}
    unknown = [name for name in asked if name not in METRICS]
    if unknown:
        raise ValueError(
            f"The metric {unknown[0]!r} is not known by its name: {', '.join(METRICS)} is. "
            "Give a dict of names and functions of (output, target)."
        )
    return {name: METRICS[name] for name in asked}


def measured(metrics: Mapping[str, Metric], output: Any, target: Any) -> list[Any]:
    """Return the value of each metric for a batch, as tensors of one number.

    Raises:
        TypeError: If one is not a number; it is named.
    """
    import torch

    values = {name: torch.as_tensor(metric(output, target)) for name, metric in metrics.items()}
    for name, value in values.items():
        if value.numel() != 1:
            raise TypeError(
                f"The metric {name!r} is a tensor of shape {tuple(value.shape)}, but it must be "
                "one number, the samples' mean."
            )
    return [value.detach().reshape(()) for value in values.values()]


def chosen_collectors(options: TrainingOptions) -> dict[str, Any]:
    """Return the metrics that collect all validation data before they have a value, by name.

    Raises:
        ValueError: If there is no validation data for them.
    """
    asked = options.metrics
    items = asked.items() if isinstance(asked, Mapping) else ()
    found = {name: metric for name, metric in items if is_collector(metric)}
    if found and options.validation is None:
        raise ValueError(
            f"The metric {next(iter(found))!r} has update() and compute(): it is measured on all "
            "of the validation data, but there is none. Give validation=, or a function."
        )
    return found


@contextlib.contextmanager
def evaluating(net: Any) -> Iterator[None]:
    """Let a network, and each part of it, be in evaluation mode."""
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def types_told(net: Any, inputs: Any) -> Iterator[None]:
    """Note on an error that inputs and network have floating-point numbers of different types."""
    try:
        yield
    except RuntimeError as error:
        given = {leaf.dtype for leaf in leaves_of(inputs) if _is_floating(leaf)}
        needed = {leaf.dtype for leaf in net.parameters() if _is_floating(leaf)}
        if given and needed and given.isdisjoint(needed):
            error.add_note(
                f"The inputs are {_names(given)}, the network is {_names(needed)}. "
                'x.float(), or x.astype("float32") of an array, makes float32 of inputs.'
            )
        raise


def _is_floating(leaf: Any) -> bool:
    return bool(getattr(getattr(leaf, "dtype", None), "is_floating_point", False))


def _names(types: set[Any]) -> str:
    return ", ".join(sorted(str(one).removeprefix("torch.") for one in types))


class Forward:
    """Takes a batch apart and runs a network on it.

    Args:
        options: With its own way to do so, where a batch is not (input, target).
        precision: In which the network runs.
        device: Where.
    """

    def __init__(self, options: TrainingOptions, precision: Precision, device: str) -> None:
        self._own = options.forward
        self._precision = precision
        self._device = device

    def __call__(self, net: Any, batch: Any) -> tuple[Any, Any]:
        """Return the network's output and the target."""
        batch = to_device(batch, self._device)
        with self._precision.autocast():
            if self._own is not None:
                return self._own(net, batch)
            inputs, target = self._taken_apart(batch)
            with types_told(net, inputs):
                return net(inputs), target

    @staticmethod
    def _taken_apart(batch: Any) -> tuple[Any, Any]:
        if isinstance(batch, Sequence) and len(batch) == 2:
            return batch[0], batch[1]
        size = f" of {len(batch)}" if isinstance(batch, Sequence | Mapping) else ""
        raise TypeError(
            f"A batch is a {type(batch).__name__}{size}, but (input, target) was expected. Give "
            "forward=, a function of (net, batch) that returns (output, target)."
        )


class Evaluation:
    """Loss and metrics over all of the validation data; every rank takes its share.

    Args:
        loss: Takes output and target, returns the mean over its samples.
        options: With the data.
        ranks: Who shares it.
        forward: Runs the network.

    Raises:
        ValueError: If the data has no samples.
    """

    def __init__(self, loss: Any, options: TrainingOptions, ranks: Ranks, forward: Forward) -> None:
        self._loss = loss
        self._ranks = ranks
        self._forward = forward
        self._metrics = chosen_metrics(options)
        self._collectors = chosen_collectors(options)
        for collector in self._collectors.values():
            # Each of them gets the data of all ranks, so there is nothing to add up.
            with contextlib.suppress(AttributeError):
                collector.sync_on_compute = False
        self._source = make_source(options.validation, ranks, in_order(options), "validation data")

    def measure(self, net: Any) -> dict[str, float]:
        """Return `loss` and the metrics by name; the averages are the same on all ranks.

        Raises:
            ValueError: If the data has no samples.
        """
        import torch

        sums = torch.zeros(2 + len(self._metrics), dtype=torch.float64, device=self._ranks.device)
        with torch.no_grad(), evaluating(net):
            for step in self._source.epoch(0):
                for part in step:
                    found = self._forward(net, part.batch) if part.num_rows else None
                    if found is not None:
                        sums += part.num_rows * sums.new_tensor([1.0, *self._values(*found)])
                    self._collect(found)
        self._ranks.sum(sums)
        rows, *totals = sums.tolist()
        if not rows:
            raise ValueError("The validation data has no samples.")
        averages = zip(("loss", *self._metrics), (total / rows for total in totals), strict=True)
        return {**dict(averages), **self._computed()}

    def _values(self, output: Any, target: Any) -> list[float]:
        loss = self._loss(output, target)
        return [float(value) for value in (loss, *measured(self._metrics, output, target))]

    def _collect(self, found: tuple[Any, Any] | None) -> None:
        """Give the first rank's collectors what all ranks have computed, in the data's order."""
        if not self._collectors:
            return
        for share in self._ranks.gather(found and to_device(found, "cpu")):
            if share is not None and self._ranks.is_first:
                for collector in self._collectors.values():
                    collector.update(*share)

    def _computed(self) -> dict[str, float]:
        if not self._ranks.is_first:
            return {}
        values = {name: float(metric.compute()) for name, metric in self._collectors.items()}
        for collector in self._collectors.values():
            collector.reset()
        return values
