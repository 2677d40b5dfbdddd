"""What the ranks find in each step, read one step later, so that nobody waits for a GPU.

exchange    add up over the ranks: losses, metrics, and how many want to stop
settle      read the sums: write a row, tell it, say why the training ends; all ranks agree
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_mgpu.on_engine.training.history import History
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.watching import EventFiles, Watcher

ASKED = "stopped when asked to"
ASKED_AFTER_EPOCH = "stopped after the epoch when asked to"
BAD_LOSS = "the loss was not finite"


@dataclass(slots=True)
class _Pending:
    """A step whose sums over the ranks are on their way."""

    row: dict[str, Any]
    sums: Any
    own_loss: Any


class Ledger:
    """Reads what was measured, and tells it.

    Args:
        options: What was asked for.
        ranks: Who trains.
        watcher: Who watches.
        names: Of the metrics of each step.
        total: Steps of the whole training, if that is known.
    """

    def __init__(
        self,
        options: TrainingOptions,
        ranks: Ranks,
        watcher: Watcher,
        names: Sequence[str],
        total: int | None,
    ) -> None:
        self._options = options
        self._ranks = ranks
        self._watcher = watcher
        self._names = names
        self._total = total
        self._files = EventFiles(options.log_dir if ranks.is_first else None)
        self._pending: _Pending | None = None
        self._wants_stop = False
        self._start_s = time.monotonic()
        self.is_last_epoch = False  # some rank was asked to stop after it
        self.history = History()

    def note(self, sentence: str) -> None:
        """Keep and tell how the options were read."""
        self.history.notes.append(sentence)
        if self._ranks.is_first:
            self._watcher.note(sentence)

    def exchange(self, row: dict[str, Any], sums: Any) -> None:
        """Add up what the ranks found in a step.

        Args:
            row: Of this step; it gets the values when they are read.
            sums: This rank's share of loss and metrics, a tensor.
        """
        import torch

        asked = self._watcher.stop_requested
        wishes = self._wants_stop or asked("step"), asked("epoch")
        own_loss = sums[0].clone()
        added = self._ranks.sum(torch.cat([sums, sums.new_tensor(wishes)]))
        self._pending = _Pending(row, added, own_loss)

    def settle(self) -> str | None:
        """Read what the ranks found in the step before; say why the training ends, if it does.

        Raises:
            FloatingPointError: If the loss is not finite; it names the first rank and the step.
        """
        found, self._pending = self._pending, None
        if found is None:
            return None
        loss, *metrics, wants, wants_after_epoch = found.sums.tolist()
        self.is_last_epoch |= wants_after_epoch > 0
        row = found.row
        row.update(loss=loss, **dict(zip(self._names, metrics, strict=True)))
        self.history.steps.append(row)
        if self._ranks.is_first:
            self._tell(row)
        if not math.isfinite(loss) and self._options.on_bad_loss != "skip":
            if self._options.on_bad_loss == "stop":
                return BAD_LOSS
            self._raise_bad_loss(found)
        return ASKED if wants else None

    def settle_before(self, row: dict[str, Any], sums: Any) -> str | None:
        """Read the step before, then let this one be on its way: it may still be computed."""
        before = self._pending
        self.exchange(row, sums)
        now, self._pending = self._pending, before
        reason = self.settle()
        self._pending = now
        return reason

    def _tell(self, row: dict[str, Any]) -> None:
        self._report(row)
        self._watcher.progress(row["step"], self._total)
        if (row["step"] - 1) % self._options.verbose_frequency == 0:
            self._show(row)
        # All of them are called, whatever the first ones say.
        answers = [callback(row) for callback in self._options.callbacks]
        self._wants_stop |= any(map(bool, answers))

    def validated(self, row: dict[str, Any]) -> None:
        """Keep and tell what was measured on the validation data."""
        self.history.validations.append(row)
        if self._ranks.is_first:
            self._report(row)
            self._show(row)

    def _report(self, row: dict[str, Any]) -> None:
        self._watcher.report(**row)
        self._files.report(**row)

    def _show(self, row: dict[str, Any]) -> None:
        if self._options.verbose:
            self._watcher.show({**row, "seconds": time.monotonic() - self._start_s})

    def _raise_bad_loss(self, found: _Pending) -> None:
        """Name the ranks: all of them come here at the same step."""
        losses = self._ranks.gather(float(found.own_loss))
        bad = [rank for rank, loss in enumerate(losses) if not math.isfinite(loss)]
        where = f" on rank {', '.join(map(str, bad))}" if not self._ranks.is_alone else ""
        raise FloatingPointError(
            f"The loss is {float(found.sums[0])} at step {found.row['step']}{where}. Lower the "
            "learning rate, look at the data, or set on_bad_loss to 'skip' or 'stop'."
        )

    def close(self) -> None:
        """End it, however the training ended."""
        self.history.seconds = time.monotonic() - self._start_s
        self._files.close()
