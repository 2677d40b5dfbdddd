"""The loop of a training on one rank; all ranks run it, and meet in every step.

every step    parts of the batch -> gradients -> exchange -> update
one step on   the losses, Stop and bad losses of all ranks are read: all act at the same step
at times      validation, best network, checkpoints
"""

import copy
import math
import time
from typing import Any

from jupyter_mgpu.on_engine import seeds
from jupyter_mgpu.on_engine.training.alike import FirstBatch, demand_equal_lengths
from jupyter_mgpu.on_engine.training.averaging import Average
from jupyter_mgpu.on_engine.training.forward import Forward
from jupyter_mgpu.on_engine.training.ledger import ASKED, ASKED_AFTER_EPOCH, Ledger
from jupyter_mgpu.on_engine.training.metrics import chosen_collectors, chosen_metrics
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.resuming import Keeper, Position
from jupyter_mgpu.on_engine.training.setup import Precision, Schedule, make_optimizer
from jupyter_mgpu.on_engine.training.sources import ahead, resolved
from jupyter_mgpu.on_engine.training.strategies.choosing import make_strategy
from jupyter_mgpu.on_engine.training.validation import Validator
from jupyter_mgpu.on_engine.training.watching import Watcher, demand_tensorboard

TRIALS = 3
COMPLETED = "all epochs completed"


class Training:
    """One rank's part of a training.

    Args:
        net: The network; it is trained in place.
        data: What to train with.
        loss: Takes output and target, returns the mean over its samples.
        options: How.
        ranks: Who trains.
        watcher: Who watches.
        run: Names this training where it may start again.
    """

    def __init__(
        self,
        net: Any,
        data: Any,
        loss: Any,
        options: TrainingOptions,
        ranks: Ranks,
        watcher: Watcher,
        run: str = "",
    ) -> None:
        if options.log_dir is not None:
            demand_tensorboard()
        chosen_collectors(options)
        options = resolved(options, data, ranks)
        self._ranks = ranks
        demand_equal_lengths(data, ranks, "data")
        demand_equal_lengths(options.validation, ranks, "validation data")
        self._strategy = strategy = make_strategy(net, options, ranks, data)
        self._options = options = strategy.options
        self._source = strategy.source(data, options, "data")
        seeds.seed_item(options.seed, ranks.rank)
        loss = copy.deepcopy(loss).to(ranks.device) if hasattr(loss, "to") else loss
        self._optimizer = make_optimizer(strategy.net, options)
        per_epoch = self._source.batches_per_epoch
        self._schedule = Schedule(self._optimizer, options, per_epoch)
        total = per_epoch * options.max_epochs if per_epoch is not None else None
        precision = Precision(options.precision, ranks.device)
        metrics = chosen_metrics(options)
        self._stepper = strategy.stepper(loss, metrics, self._optimizer, precision)
        self._ledger = Ledger(options, ranks, watcher, list(metrics), total)
        self._average = Average(strategy, options.average_decay)
        forward = Forward(options, precision, ranks.device)
        self._validator = Validator(
            strategy, self._average, loss, options, ranks, forward, self._ledger
        )
        self._first_batch = FirstBatch(ranks, is_divided=strategy.divides_batches)
        self._place = Position()
        parts = {
            "schedule": self._schedule,
            "scaler": precision.scaler,
            "average": self._average,
            "validator": self._validator,
        }
        self.history = self._ledger.history
        self._keeper = Keeper(
            strategy, self._optimizer, parts, options, ranks, self._place, self.history, run
        )
        if strategy.note:
            self._ledger.note(strategy.note)
        if options.scale == "linear":
            self._ledger.note(_scaling(options, ranks, self._schedule.warm_up))

    def note(self, sentence: str) -> None:
        """Keep and tell how the options were read."""
        self._ledger.note(sentence)

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
            The state of the network that the options ask for; all of it on the first rank.

        Raises:
            FloatingPointError: If the loss is not finite; it names the first rank and the step.
        """
        self._strategy.net.train()
        try:
            self._keeper.resume()
            reason = self._epochs()
            last_reason = self._ledger.settle()
            self.history.stopped = reason or last_reason or COMPLETED
            self._validator.at_the_end(self._place.step, self._last_epoch())
            if self.history.stopped == ASKED:
                self._keeper.save()
        finally:
            self._ledger.close()
        self.history.exchange_share = self._stepper.exchange_s / max(self.history.seconds, 1e-9)
        return self._strategy.whole(self._validator.chosen)

    def _last_epoch(self) -> int:
        return int(self.history.steps[-1]["epoch"]) if self.history.steps else 0

    def _epochs(self) -> str | None:
        place = self._place
        for epoch in range(place.epoch, self._options.max_epochs):
            place.epoch = epoch
            steps = self._source.epoch(epoch, skip=place.steps_in_epoch)
            for parts in ahead(steps, self._ranks.device):
                with self._first_batch.explained(parts):
                    self._stepper.go_parallel(parts)
                    reason = self._step(parts, epoch + 1)
                place.steps_in_epoch += 1
                if reason is not None:
                    return reason
            place.epoch, place.steps_in_epoch = epoch + 1, 0
            self._schedule.epoch()
            reason = self._ledger.settle() or self._at_epoch_end(epoch + 1)
            if reason is not None:
                return reason
        return None

    def _at_epoch_end(self, epoch: int) -> str | None:
        reason = None
        if self._validator.after_epoch:
            reason = self._validator.validate(self._place.step, epoch)
        if self._ledger.is_last_epoch and epoch < self._options.max_epochs:
            reason = reason or ASKED_AFTER_EPOCH
        if reason == ASKED_AFTER_EPOCH or epoch % self._options.checkpoint_frequency == 0:
            self._keeper.save()
        return reason

    def _step(self, parts: Any, epoch: int) -> str | None:
        """Make one step; return why the training ends, if it does."""
        place = self._place
        sums = self._stepper.gradients(parts)
        rate = float(self._optimizer.param_groups[0]["lr"])
        row = {"step": place.step + 1, "epoch": epoch, "rate": rate}
        reason = self._read(row, sums)
        if reason is not None and reason != ASKED:
            return reason
        is_bad = self._options.on_bad_loss == "skip" and not math.isfinite(row["loss"])
        if not is_bad:
            self._stepper.update()
            self._average.update()
        place.step += 1
        self._schedule.step()
        if reason is None and self._validator.after_step(place.step):
            reason = self._ledger.settle() or self._validator.validate(place.step, epoch)
        return reason

    def _read(self, row: dict[str, Any], sums: Any) -> str | None:
        if self._options.on_bad_loss == "raise":
            return self._ledger.settle_before(row, sums)
        self._ledger.exchange(row, sums)  # this very step decides whether it is one
        return self._ledger.settle()


def _scaling(options: TrainingOptions, ranks: Ranks, warm_up: int) -> str:
    size, rate = options.batch_size, options.rate
    return (
        f"scale='linear': {size} samples per step ({size // ranks.world_size} x "
        f"{ranks.world_size} ranks), rate {rate:g}, which rises over the first {warm_up} steps."
    )
