"""Metrics: values of each batch, and objects that look at all of the validation data."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jupyter_mgpu.on_engine.training.options import TrainingOptions

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


class Collectors:
    """Metrics that see all of the validation data, on the first rank, before they have a value.

    Args:
        collectors: By name; they are copied.
    """

    def __init__(self, collectors: Mapping[str, Any]) -> None:
        self._collectors = {name: copy.deepcopy(metric) for name, metric in collectors.items()}
        for collector in self._collectors.values():
            for part in collector.modules() if hasattr(collector, "modules") else ():
                # torchmetrics' would ask the other ranks, which compute nothing.
                part.distributed_available_fn = _is_never

    def __bool__(self) -> bool:
        """Tell whether there is one."""
        return bool(self._collectors)

    def update(self, output: Any, target: Any) -> None:
        """Take what the network made of some samples, and what it should have made."""
        for collector in self._collectors.values():
            collector.update(output, target)

    def compute(self) -> dict[str, float]:
        """Return the values by name, and begin anew.

        Raises:
            TypeError: If one is not a number; it is named.
        """
        values: dict[str, float] = {}
        for name, collector in self._collectors.items():
            values |= _numbers(name, collector.compute())
            collector.reset()
        return values


def _is_never() -> bool:
    return False


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Name the number of a metric, or those of a collection of metrics."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _numbers(f"{name}_{key}", part)
        return
    try:
        yield name, float(value)
    except (TypeError, ValueError, RuntimeError):
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        raise TypeError(
            f"The metric {name!r} gives a {type(value).__name__}{shape}, but it must give one "
            "number."
        ) from None
