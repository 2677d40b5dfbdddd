"""Optimizer, learning rate and precision, as the options name them."""

import math
from collections.abc import Callable
from typing import Any

from jupyter_mgpu.on_engine.training.options import WARM_UP_EPOCHS, TrainingOptions

PIECEWISE_EPOCHS = 10
PIECEWISE_FACTOR = 0.1


def make_optimizer(net: Any, options: TrainingOptions) -> Any:
    """Make the optimizer of a network.

    Args:
        net: The network.
        options: What was asked for.

    Raises:
        ValueError: If the network has nothing to train.
    """
    import torch

    parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError("The network has no parameters that can be trained.")
    if callable(options.optimizer):
        return options.optimizer(parameters_of(options.optimizer, net, parameters))
    kind = {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "rmsprop": torch.optim.RMSprop,
        "sgd": torch.optim.SGD,
    }[options.optimizer]
    settings: dict[str, Any] = {
        "lr": options.rate,
        "weight_decay": options.weight_decay,
    }
    if options.optimizer == "sgd":
        settings["momentum"] = options.momentum
    return kind(parameters, **settings)


def parameters_of(factory: Callable[..., Any], net: Any, parameters: list[Any]) -> Any:
    """Return what an optimizer factory takes: the network where its argument is called `net`."""
    import inspect

    try:
        first = next(iter(inspect.signature(factory).parameters), "")
    except (TypeError, ValueError):
        first = ""
    return net if first in ("net", "model", "module", "network") else parameters


class Schedule:
    """The learning rate of each step.

    Args:
        optimizer: Whose rate it sets.
        options: What was asked for.
        steps_per_epoch: Batches in an epoch; None where that is not known.
    """

    def __init__(
        self, optimizer: Any, options: TrainingOptions, steps_per_epoch: int | None
    ) -> None:
        import torch

        self._per_epoch: Any = None
        self._per_step: Any = None
        self.warm_up = 0  # steps
        if callable(options.schedule):
            self._per_epoch = options.schedule(optimizer)
            if isinstance(self._per_epoch, torch.optim.lr_scheduler.ReduceLROnPlateau):
                raise ValueError(
                    "schedule returned a ReduceLROnPlateau, which needs a loss to look at, but "
                    "train only lets it step. Choose another scheduler; validation_patience ends "
                    "a training that gets no better."
                )
            return
        self.warm_up = warm_up = _warm_up_steps(options, steps_per_epoch)
        factor = _factor(options, steps_per_epoch)
        if warm_up or options.schedule != "none":
            self._per_step = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: min(1.0, (step + 1) / (warm_up + 1)) * factor(step)
            )

    def step(self) -> None:
        """Go on after a step."""
        if self._per_step is not None:
            self._per_step.step()

    def epoch(self) -> None:
        """Go on after an epoch."""
        if self._per_epoch is not None:
            self._per_epoch.step()

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes."""
        scheduler = self._per_step or self._per_epoch
        if scheduler is None:
            return {}
        # The factor is a function, made anew from the options.
        return {k: v for k, v in scheduler.state_dict().items() if k != "lr_lambdas"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another training stopped."""
        scheduler = self._per_step or self._per_epoch
        if scheduler is not None and state:
            scheduler.__dict__.update(state)


def _warm_up_steps(options: TrainingOptions, steps_per_epoch: int | None) -> int:
    if options.warm_up is not None:
        return options.warm_up
    if options.scale == "linear" and steps_per_epoch is not None:
        return min(WARM_UP_EPOCHS, max(1, options.max_epochs // 10)) * steps_per_epoch
    return 0


def _factor(options: TrainingOptions, steps_per_epoch: int | None) -> Callable[[int], float]:
    if options.schedule == "none":
        return lambda _: 1.0
    if steps_per_epoch is None:
        raise ValueError(
            f"schedule is {options.schedule!r}, but an iterable data set has no known length. "
            "Give a function as schedule: it steps once per epoch."
        )
    if options.schedule == "piecewise":
        return lambda step: PIECEWISE_FACTOR ** (step // (PIECEWISE_EPOCHS * steps_per_epoch))
    total = options.max_epochs * steps_per_epoch
    return lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, step / total)))


class Precision:
    """Runs the network in lower precision where asked, and scales gradients that need it."""

    def __init__(self, name: str, device: str) -> None:
        import torch

        self._kind = device.partition(":")[0]
        self._dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name)
        self.scaler = torch.amp.GradScaler(self._kind, enabled=name == "fp16")

    def autocast(self) -> Any:
        """Return the context in which the network runs."""
        import torch

        enabled = self._dtype is not None
        return torch.autocast(self._kind, dtype=self._dtype, enabled=enabled)
