"""The loop of a training on one rank; all ranks run it, and meet in every step.

every step    parts of the batch -> gradients -> exchange -> update
one step on   the losses, Stop and bad losses of all ranks are read: all act at the same step
at times      validation, best network
"""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jupyter_mgpu.on_engine.training import checkpoints
from jupyter_mgpu.on_engine.training.evaluation import Forward, chosen_metrics, evaluate
from jupyter_mgpu.on_engine.training.history import History
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.setup import Precision, Schedule, make_optimizer
from jupyter_mgpu.on_engine.training.sources import make_source
from jupyter_mgpu.on_engine.training.step import Stepper

TRIALS = 3
COMPLETED = "all epochs completed"
ASKED = "stopped when asked to"
PATIENCE = "the validation loss did not get better"
BAD_LOSS = "the loss was not finite"


@dataclass(slots=True)
class Watcher:
    """How a training talks to those who watch it.

    Attributes:
        report: Takes step and metrics.
        stop_requested: Tells whether this rank was asked to stop.
        show: Takes a row of the table, on the first rank.
        progress: Takes the steps done, and all of them if that is known, on the first rank.
    """

    report: Callable[..., None] = lambda **_: None
    stop_requested: Callable[[], bool] = lambda: False
    show: Callable[[dict[str, Any]], None] = lambda _: None
    progress: Callable[[int, int | None], None] = lambda *_: None


@dataclass(slots=True)
class _Seen:
    """A step whose sums over the ranks are on their way."""

    row: dict[str, Any]
    sums: Any
    own_loss: Any


@dataclass(slots=True)
class _Best:
    loss: float = math.inf
    state: dict[str, Any] | None = None
    num_worse: int = 0


class Training:
    """One rank's part of a training.

    Args:
        net: The network; it is trained in place.
        data: What to train with.
        loss: Takes output and target, returns the mean over its samples.
        options: How.
        ranks: Who trains.
        watcher: Who watches.
    """

    def __init__(
        self,
        net: Any,
        data: Any,
        loss: Any,
        options: TrainingOptions,
        ranks: Ranks,
        watcher: Watcher,
    ) -> None:
        self._options = options
        self._ranks = ranks
        self._watcher = watcher
        self._loss = loss
        scale = ranks.world_size if options.scale == "linear" else 1
        self._net = self._prepared(net)
        self._source = make_source(
            data,
            ranks,
            batch_size=options.mini_batch_size * scale,
            shuffle=options.shuffle,
            drop_last=options.drop_last,
            seed=options.seed,
            num_workers=options.num_workers,
            num_parts=options.accumulate,
        )
        self._optimizer = make_optimizer(self._net, options, scale)
        per_epoch = self._source.batches_per_epoch
        self._schedule = Schedule(self._optimizer, options, per_epoch)
        self.total = per_epoch * options.max_epochs if per_epoch is not None else None
        self._precision = Precision(options.precision, ranks.device)
        self._metrics = chosen_metrics(options)
        self._forward = Forward(options, self._precision, ranks.device)
        self._stepper = Stepper(
            self._net,
            loss,
            list(self._metrics.values()),
            self._optimizer,
            self._precision,
            options,
            ranks,
        )
        self._best = _Best()
        self._pending: _Seen | None = None
        self._wants_stop = False
        self._start_s = 0.0
        self._epoch = self._steps_in_epoch = 0
        self.step = 0
        self.history = History()

    def _prepared(self, net: Any) -> Any:
        import torch

        torch.manual_seed(self._options.seed + self._ranks.rank)
        if self._options.sync_batch_norm and not self._ranks.is_alone:
            from jupyter_mgpu.on_engine.training.sync_batch_norm import convert

            net = convert(net, self._ranks)
        net = net.to(self._ranks.device)
        if self._options.compile:
            net.compile()
        return net

    def measure(self) -> float:
        """Return the seconds that the gradients of a batch take here; nothing is updated."""
        parts = next(iter(self._source.epoch(0)))
        times = []
        for _ in range(1 + TRIALS):  # the first one warms up
            begun_s = time.perf_counter()
            float(self._stepper.gradients(parts)[0])  # waits for a GPU
            times.append(time.perf_counter() - begun_s)
        return min(times[1:])

    def run(self) -> dict[str, Any]:
        """Train.

        Returns:
            The state of the network that the options ask for.

        Raises:
            FloatingPointError: If the loss is not finite; it names the first rank and the step.
        """
        self._start_s = time.monotonic()
        self._net.train()
        if self._options.resume:
            self._resume()
        self.history.stopped = self._epochs() or self._settle() or COMPLETED
        self._pending = None
        self._validate_at_the_end()
        if self.history.stopped == ASKED:
            self._save()
        self.history.seconds = time.monotonic() - self._start_s
        best = self._best.state
        is_best = self._options.output_network != "last" and best is not None
        return best if is_best and best is not None else self._net.state_dict()

    def _validate_at_the_end(self) -> None:
        """Let the last network compete with the best one."""
        done = {row["step"] for row in self.history.validations}
        if self._options.validation is not None and self.step and self.step not in done:
            self._validate(self.history.steps[-1]["epoch"] - 1)

    def _epochs(self) -> str | None:
        for epoch in range(self._epoch, self._options.max_epochs):
            self._epoch = epoch
            for parts in self._source.epoch(epoch, skip=self._steps_in_epoch):
                self._stepper.go_parallel(parts)
                reason = self._one(parts, epoch)
                self._steps_in_epoch += 1
                if reason is not None:
                    return reason
            self._epoch, self._steps_in_epoch = epoch + 1, 0
            self._schedule.epoch()
            reason = self._settle() or self._at_epoch_end(epoch)
            if reason is not None:
                return reason
        return None

    def _at_epoch_end(self, epoch: int) -> str | None:
        options = self._options
        reason = None
        if options.validation is not None and options.validation_frequency is None:
            reason = self._validate(epoch)
        if (epoch + 1) % options.checkpoint_frequency == 0:
            self._save()
        return reason

    def _save(self) -> None:
        """Write a checkpoint, if there is a folder for them; all ranks call this at one step."""
        folder = self._options.checkpoint_folder
        if folder is None:
            return
        randoms = self._ranks.gather(checkpoints.random_state())
        if not self._ranks.is_first:
            return
        state = {
            "net": self._net.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "scaler": self._precision.scaler.state_dict(),
            "random": randoms,
            "epoch": self._epoch,
            "steps_in_epoch": self._steps_in_epoch,
            "step": self.step,
            "best": (self._best.loss, self._best.state, self._best.num_worse),
            "history": (self.history.steps, self.history.validations),
        }
        checkpoints.save(folder, self.step, state, self._options.keep_checkpoints)

    def _resume(self) -> None:
        """Go on where a checkpoint was written; every rank reads it."""
        place = self._options.resume
        folder = self._options.checkpoint_folder
        state = checkpoints.load(folder if place is True else place, self._ranks.device)  # type: ignore[arg-type] # checked by the options
        self._net.load_state_dict(state["net"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        self._precision.scaler.load_state_dict(state["scaler"])
        self._epoch, self._steps_in_epoch = state["epoch"], state["steps_in_epoch"]
        self.step = state["step"]
        self._best = _Best(*state["best"])
        self.history.steps, self.history.validations = state["history"]
        if self._ranks.rank < len(state["random"]):
            checkpoints.set_random_state(state["random"][self._ranks.rank])

    def _one(self, parts: Any, epoch: int) -> str | None:
        """Make one step; return why the training ends, if it does."""
        options = self._options
        sums = self._stepper.gradients(parts)
        row = {"step": self.step + 1, "epoch": epoch + 1, "rate": self._rate()}
        seen = self._exchange(row, sums)
        reason = None
        if options.on_bad_loss == "raise":
            reason = self._settle()  # the step before: this one is still being computed
            self._pending = seen
        else:
            self._pending = seen
            reason = self._settle()
        if reason is not None and reason != ASKED:
            return reason
        is_bad = options.on_bad_loss == "skip" and not math.isfinite(row.get("loss", 0.0))
        if not is_bad:
            self._stepper.update()
        self.step += 1
        self._schedule.step()
        every = options.validation_frequency
        if reason is None and options.validation is not None and every and self.step % every == 0:
            reason = self._settle() or self._validate(epoch)
        return reason

    def _rate(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])

    def _exchange(self, row: dict[str, Any], sums: Any) -> _Seen:
        """Add up over the ranks: losses, metrics, and how many want to stop."""
        import torch

        wants = float(self._wants_stop or self._watcher.stop_requested())
        own_loss = sums[0].clone()
        return _Seen(row, self._ranks.sum(torch.cat([sums, sums.new_tensor([wants])])), own_loss)

    def _settle(self) -> str | None:
        """Read what the ranks found in a step; return why the training ends, if it does."""
        seen, self._pending = self._pending, None
        if seen is None:
            return None
        loss, *metrics, wants = seen.sums.tolist()
        row = seen.row
        row.update(loss=loss, **dict(zip(self._metrics, metrics, strict=True)))
        self.history.steps.append(row)
        if self._ranks.is_first:
            self._tell(row)
        if not math.isfinite(loss):
            reason = self._on_bad_loss(seen)
            if reason is not None:
                return reason
        return ASKED if wants else None

    def _tell(self, row: dict[str, Any]) -> None:
        values = {key: value for key, value in row.items() if key != "step"}
        self._watcher.report(step=row["step"], **values)
        self._watcher.progress(row["step"], self.total)
        if (row["step"] - 1) % self._options.verbose_frequency == 0:
            self._show(row)
        # All of them are called, whatever the first ones say.
        answers = [callback(row) for callback in self._options.callbacks]
        self._wants_stop |= any(map(bool, answers))

    def _show(self, row: dict[str, Any]) -> None:
        if self._options.verbose:
            self._watcher.show({**row, "seconds": time.monotonic() - self._start_s})

    def _on_bad_loss(self, seen: _Seen) -> str | None:
        """Act on a loss that is not finite: all ranks come here at the same step."""
        if self._options.on_bad_loss == "skip":
            return None
        if self._options.on_bad_loss == "stop":
            return BAD_LOSS
        losses = self._ranks.gather(float(seen.own_loss))
        bad = [rank for rank, loss in enumerate(losses) if not math.isfinite(loss)]
        where = f" on rank {', '.join(map(str, bad))}" if not self._ranks.is_alone else ""
        raise FloatingPointError(
            f"The loss is {float(seen.sums[0])} at step {seen.row['step']}{where}. Lower the "
            "learning rate, look at the data, or set on_bad_loss to 'skip' or 'stop'."
        )

    def _validate(self, epoch: int) -> str | None:
        """Measure on the validation data; return why the training ends, if it does."""
        found = evaluate(
            self._net,
            self._options.validation,
            self._loss,
            self._options,
            self._ranks,
            self._forward,
        )
        row: dict[str, Any] = {"step": self.step, "epoch": epoch + 1}
        row |= {f"validation_{name}": value for name, value in found.items()}
        self.history.validations.append(row)
        if self._ranks.is_first:
            self._watcher.report(**row)
            self._show(row)
        if found["loss"] < self._best.loss:
            self._best = _Best(found["loss"], self._snapshot())
            return None
        self._best.num_worse += 1
        return PATIENCE if self._best.num_worse >= self._options.validation_patience else None

    def _snapshot(self) -> dict[str, Any] | None:
        """Copy the network as it is; one rank hands it out."""
        if not self._ranks.is_first or self._options.output_network == "last":
            return None
        state: dict[str, Any] = copy.deepcopy(self._net.state_dict())
        return state
