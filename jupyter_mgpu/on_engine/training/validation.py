"""Measures a network on the validation data at times, and keeps the best one."""

import math
from dataclasses import dataclass
from typing import Any

from jupyter_mgpu.on_engine.training.averaging import Average, copied
from jupyter_mgpu.on_engine.training.evaluation import Evaluation
from jupyter_mgpu.on_engine.training.forward import Forward
from jupyter_mgpu.on_engine.training.ledger import Ledger
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.strategies.strategy import Strategy

PATIENCE = "the validation loss did not get better"


@dataclass(slots=True)
class _Best:
    loss: float = math.inf
    state: dict[str, Any] | None = None
    num_worse: int = 0


class Validator:
    """Validates a network while it is trained.

    Args:
        strategy: With the network.
        average: The weights that are measured and handed out.
        loss: Takes output and target.
        options: With the validation data and how often.
        ranks: Who trains.
        forward: Runs the network.
        ledger: Takes what is measured.

    Raises:
        ValueError: If the validation data has no samples.
    """

    def __init__(
        self,
        strategy: Strategy,
        average: Average,
        loss: Any,
        options: TrainingOptions,
        ranks: Ranks,
        forward: Forward,
        ledger: Ledger,
    ) -> None:
        self._strategy = strategy
        self._average = average
        self._options = options
        self._ranks = ranks
        self._ledger = ledger
        self._best = _Best()
        self._evaluation = None
        if options.validation is not None:
            self._evaluation = Evaluation(strategy, loss, options, ranks, forward)

    def after_step(self, step: int) -> bool:
        """Tell whether to validate after a step."""
        every = self._options.validation_frequency
        return self._evaluation is not None and every is not None and step % every == 0

    @property
    def after_epoch(self) -> bool:
        """Whether to validate after each epoch."""
        return self._evaluation is not None and self._options.validation_frequency is None

    def validate(self, step: int, epoch: int) -> str | None:
        """Measure; say why the training ends, if it does."""
        if self._evaluation is None:
            return None
        with self._average.in_place():
            found = self._evaluation.measure()
        row: dict[str, Any] = {"step": step, "epoch": epoch}
        row |= {f"validation_{name}": value for name, value in found.items()}
        self._ledger.validated(row)
        if found["loss"] < self._best.loss:
            self._best = _Best(found["loss"], self._snapshot())
            return None
        self._best.num_worse += 1
        return PATIENCE if self._best.num_worse >= self._options.validation_patience else None

    def at_the_end(self, step: int, epoch: int) -> None:
        """Let the last network compete with the best one."""
        done = {row["step"] for row in self._ledger.history.validations}
        if step and step not in done:
            self.validate(step, epoch)

    def _snapshot(self) -> dict[str, Any] | None:
        """Copy the network as it is; where one rank has all of it, that one hands it out."""
        has_part = self._ranks.is_first or self._strategy.is_split
        if not has_part or self._options.output_network == "last":
            return None
        return copied(self._average.state)

    @property
    def chosen(self) -> dict[str, Any]:
        """This rank's part of the state that the options ask for."""
        return self._average.state if self._best.state is None else self._best.state

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes, on the first rank; all ranks call it."""
        best = self._best
        state = None if best.state is None else self._strategy.whole(best.state)
        return {"loss": best.loss, "state": state, "num_worse": best.num_worse}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another training stopped."""
        whole = state["state"]
        self._best = _Best(**state | {"state": whole and self._strategy.own(whole)})
