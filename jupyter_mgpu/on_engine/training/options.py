"""What a training is asked for, checked before anything runs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jupyter_mgpu.on_engine.training import strategy_rules

ENVIRONMENTS = ("auto", "cpu", "gpu", "multi-gpu", "parallel")
OPTIMIZERS = ("adamw", "adam", "sgd", "rmsprop")
SCHEDULES = ("none", "cosine", "piecewise")
SHUFFLES = ("never", "once", "every-epoch")
WARM_UP_EPOCHS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """How `train` trains.

    Attributes:
        execution_environment: "auto" (one GPU, else the CPU), "cpu", "gpu", "multi-gpu" (all GPUs
            of this machine: a pool with one engine each), "parallel" (the current pool).
        optimizer: "adamw", "adam", "sgd", "rmsprop", or a function that takes the parameters.
        learning_rate: For an optimizer that is named; 0.001, for "sgd" 0.01.
        momentum: Of "sgd".
        weight_decay: Of an optimizer that is named.
        schedule: "none", "cosine" (to 0 at the end), "piecewise" (a tenth every 10 epochs), or a
            function that takes the optimizer and returns a torch scheduler; it steps per epoch.
        warm_up: Steps in which the rate rises linearly from 0.
        max_epochs: How often all data is seen.
        strategy: How ranks share the network. "ddp": each holds all of it. "fsdp": each holds a
            part of every parameter. "pipeline": each holds some of its layers.
        pipeline_schedule: Of "pipeline": "1f1b" holds fewer outputs at a time than "gpipe".
        pipeline_splits: The children of the network with which the stages after the first begin,
            such as ["layer3", "head.1"]; by default stages of about equal size.
        mini_batch_size: Samples per step, over all ranks together; a DataLoader's own, else 128.
        scale: "linear" multiplies the batch and the rate by the number of ranks, with a warm-up.
        shuffle: "every-epoch", "once", "never"; the same order for any number of ranks. A
            DataLoader's own sampler, else "every-epoch".
        drop_last: Leave out the partial batch at an epoch's end; a DataLoader's own, else True.
        seed: Of the order, dropout and whatever else is random.
        worker_load: Which ranks compute, and how much: a fraction or number of them, or one
            weight per rank; "auto" measures. All of them equally by default.
        num_workers: Processes per rank that load data.
        clip_norm: Largest norm of all gradients together.
        accumulate: Parts in which a batch is computed, to save memory; with "fsdp" each rank then
            keeps whole gradients for a while. The microbatches of "pipeline", where 1 lets it
            choose.
        precision: "float32" (whatever the network has), "bf16", "fp16" (with a gradient scaler).
        compile: Compile the network by torch.compile.
        sync_batch_norm: Normalize over the batch of all ranks, as one device would.
        backend: By what ranks exchange: "nccl", "gloo", or "mpi" where torch was built with it; by
            default nccl on GPUs, gloo on CPUs.
        find_unused_parameters: Allow parameters that a step does not use.
        forward: `forward(net, batch) -> (output, target)`, where a batch is not (input, target).
        metrics: Functions of (output, target) by name, averaged over samples; or "accuracy".
            Objects with update, compute and reset (torchmetrics) measure the validation data.
        validation: Data as for training.
        validation_frequency: Steps between validations; once per epoch by default.
        validation_patience: End after so many validations without a better loss.
        output_network: "best-validation" or "last"; "auto" is the first where there is validation.
        average_decay: Keep a moving average of the weights, with this decay, such as 0.999; it is
            what is validated and returned.
        callbacks: Called as `callback(row)` on rank 0 after each step, with the step's dict (step,
            epoch, rate, loss, metrics); True ends the training.
        on_bad_loss: A loss that is not finite: "raise", "stop", or "skip" the step.
        checkpoint_folder: Where checkpoints are kept, on a file system that rank 0 can write.
        checkpoint_frequency: Epochs between checkpoints.
        keep_checkpoints: How many of the newest stay.
        resume: A checkpoint, or True for the newest in the folder.
        max_restarts: How often a training on a pool starts again when an engine dies, from the
            newest checkpoint.
        log_dir: Where TensorBoard's events go.
        verbose: Show how far it is, and the table of steps.
        verbose_frequency: Steps between its rows.
        plots: "training-progress" shows live curves in the notebook instead of the table; "none".
    """

    execution_environment: str = "auto"
    optimizer: str | Callable[[Any], Any] = "adamw"
    learning_rate: float | None = None
    momentum: float = 0.9
    weight_decay: float = 1e-4
    schedule: str | Callable[[Any], Any] = "none"
    warm_up: int | None = None
    max_epochs: int = 30
    strategy: str = "ddp"
    pipeline_schedule: str = "1f1b"
    pipeline_splits: Sequence[str] | None = None
    mini_batch_size: int | None = None
    scale: Literal["linear"] | None = None
    shuffle: str | None = None
    drop_last: bool | None = None
    seed: int = 0
    worker_load: float | int | Sequence[float] | str | None = None
    num_workers: int = 0
    clip_norm: float | None = None
    accumulate: int = 1
    precision: str = "float32"
    compile: bool = False
    sync_batch_norm: bool = False
    backend: str | None = None
    find_unused_parameters: bool = False
    forward: Callable[[Any, Any], tuple[Any, Any]] | None = None
    metrics: Mapping[str, Callable[[Any, Any], Any]] | Sequence[str] = field(default_factory=dict)
    validation: Any = None
    validation_frequency: int | None = None
    validation_patience: float = math.inf
    output_network: str = "auto"
    average_decay: float | None = None
    callbacks: Sequence[Callable[[Any], Any]] = ()
    on_bad_loss: str = "raise"
    checkpoint_folder: str | Path | None = None
    checkpoint_frequency: int = 1
    keep_checkpoints: int = 2
    resume: str | Path | bool | None = None
    max_restarts: int = 0
    log_dir: str | Path | None = None
    verbose: bool = True
    verbose_frequency: int = 50
    plots: str = "none"

    def __post_init__(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            ValueError: It names the option, its value and what it may be.
        """
        _one_of("execution_environment", self.execution_environment, ENVIRONMENTS)
        _one_of("shuffle", self.shuffle, (None, *SHUFFLES))
        _one_of("pipeline_schedule", self.pipeline_schedule, ("gpipe", "1f1b"))
        _one_of("backend", self.backend, (None, "nccl", "gloo", "mpi"))
        _one_of("scale", self.scale, (None, "linear"))
        _one_of("precision", self.precision, ("float32", "bf16", "fp16"))
        _one_of("output_network", self.output_network, ("auto", "best-validation", "last"))
        _one_of("plots", self.plots, ("none", "training-progress"))
        _one_of("on_bad_loss", self.on_bad_loss, ("raise", "stop", "skip"))
        if not callable(self.optimizer):
            _one_of("optimizer", self.optimizer, OPTIMIZERS)
        if not callable(self.schedule):
            _one_of("schedule", self.schedule, SCHEDULES)
        for name in ("max_epochs", "accumulate", "verbose_frequency"):
            _at_least(name, getattr(self, name), 1)
        for name in ("mini_batch_size", "validation_frequency"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        for name in ("checkpoint_frequency", "keep_checkpoints"):
            _at_least(name, getattr(self, name), 1)
        for name in ("num_workers", "max_restarts"):
            _at_least(name, getattr(self, name), 0)
        self._check_pairs()

    def _check_pairs(self) -> None:
        if callable(self.optimizer) and self.learning_rate is not None:
            raise ValueError(
                "learning_rate and a function as optimizer were both given, but the function sets "
                "the rate itself. Give one of them."
            )
        if callable(self.optimizer) and self.scale is not None:
            raise ValueError(
                "scale='linear' and a function as optimizer were both given, but the rate of that "
                "function cannot be scaled. Name an optimizer, or scale the rate yourself."
            )
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ValueError(f"clip_norm is {self.clip_norm:g}, but it must be above 0, or None.")
        if self.average_decay is not None and not 0 < self.average_decay < 1:
            raise ValueError(
                f"average_decay is {self.average_decay:g}, but it must be between 0 and 1, or None."
            )
        if self.validation is None and self.output_network == "best-validation":
            raise ValueError(
                "output_network is 'best-validation', but there is no validation data."
            )
        if self.resume is True and self.checkpoint_folder is None:
            raise ValueError("resume is True, but there is no checkpoint_folder to look in.")
        if self.mini_batch_size is not None and self.mini_batch_size < self.accumulate:
            raise ValueError(
                f"accumulate is {self.accumulate}, but a batch has {self.mini_batch_size} samples."
            )
        strategy_rules.check(self)

    @property
    def batch_size(self) -> int:
        """Samples per step, over all ranks together."""
        return self.mini_batch_size or 128

    @property
    def drops_last(self) -> bool:
        """Whether a partial last batch is left out."""
        return True if self.drop_last is None else self.drop_last

    @property
    def rate(self) -> float:
        """The learning rate of an optimizer that is named."""
        if self.learning_rate is not None:
            return self.learning_rate
        return 0.01 if self.optimizer == "sgd" else 0.001


def _one_of(name: str, value: Any, allowed: Sequence[Any]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, but it may be: {', '.join(map(repr, allowed))}.")


def _at_least(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}, but it must be a whole number from {least} on.")
