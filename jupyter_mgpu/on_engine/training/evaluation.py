"""Loss and metrics over data that is not trained on, and predictions in order."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.setup import Precision
from jupyter_mgpu.on_engine.training.sources import make_source, to_device

Metric = Callable[[Any, Any], Any]


def accuracy(output: Any, target: Any) -> Any:
    """Return the share of samples whose largest output is the target's class."""
    return (output.argmax(1) == target).float().mean()


METRICS: Mapping[str, Metric] = {"accuracy": accuracy}


def chosen_metrics(options: TrainingOptions) -> dict[str, Metric]:
    """Return the metrics that the options ask for, by name.

    Raises:
        ValueError: If one is not known by its name alone.
    """
    asked = options.metrics
    if isinstance(asked, str):
        asked = (asked,)
    if isinstance(asked, Mapping):
        return dict(asked)
    unknown = [name for name in asked if name not in METRICS]
    if unknown:
        raise ValueError(
            f"The metric {unknown[0]!r} is not known by its name: {', '.join(METRICS)} is. "
            "Give a dict of names and functions of (output, target)."
        )
    return {name: METRICS[name] for name in asked}


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


def evaluate(
    net: Any,
    data: Any,
    loss: Any,
    options: TrainingOptions,
    ranks: Ranks,
    forward: Forward,
) -> dict[str, float]:
    """Measure loss and metrics over all of the data; every rank takes its share.

    Returns:
        `loss` and the metrics by name; the same on all ranks.
    """
    import torch

    source = make_source(
        data,
        ranks,
        batch_size=options.mini_batch_size,
        shuffle="never",
        drop_last=False,
        seed=0,
        num_workers=options.num_workers,
    )
    metrics = chosen_metrics(options)
    sums = torch.zeros(2 + len(metrics), dtype=torch.float64, device=ranks.device)
    was_training = net.training
    net.eval()
    with torch.no_grad():
        for step in source.epoch(0):
            for part in (part for part in step if part.num_rows):
                output, target = forward(net, part.batch)
                found = [
                    loss(output, target),
                    *(metric(output, target) for metric in metrics.values()),
                ]
                values = [1.0, *(float(value) for value in found)]
                sums += part.num_rows * sums.new_tensor(values)
    net.train(was_training)
    ranks.sum(sums)
    rows, *totals = sums.tolist()
    if not rows:
        raise ValueError("The validation data has no samples.")
    return dict(zip(("loss", *metrics), (total / rows for total in totals), strict=True))
