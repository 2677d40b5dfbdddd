"""Writes all of a training that a checkpoint must hold, and puts it back."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jupyter_mgpu.on_engine.training import checkpoints
from jupyter_mgpu.on_engine.training.history import History
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.strategies.strategy import Strategy


@dataclass(slots=True)
class Position:
    """Where in the data a training is.

    Attributes:
        epoch: The running one, from 0.
        steps_in_epoch: Batches of it that were seen.
        step: Steps in all.
    """

    epoch: int = 0
    steps_in_epoch: int = 0
    step: int = 0


class Keeper:
    """Keeps one training's checkpoints.

    Args:
        strategy: With the network.
        optimizer: Of it.
        parts: What else has a `state_dict`, by name.
        options: With the folder, or where to go on.
        ranks: Who trains; all of them call each method at the same step.
        position: Where the training is.
        history: What it has measured.
        run: Names this training, where it may start again.
    """

    def __init__(
        self,
        strategy: Strategy,
        optimizer: Any,
        parts: Mapping[str, Any],
        options: TrainingOptions,
        ranks: Ranks,
        position: Position,
        history: History,
        run: str,
    ) -> None:
        self._run = run
        self._strategy = strategy
        self._optimizer = optimizer
        self._parts = parts
        self._options = options
        self._ranks = ranks
        self._position = position
        self._history = history

    def save(self) -> None:
        """Write a checkpoint, if there is a folder for them."""
        folder = self._options.checkpoint_folder
        if folder is None:
            return
        randoms = self._ranks.gather(checkpoints.random_state())
        state = self._whole()
        if self._ranks.is_first:
            state |= asdict(self._position)
            state["run"] = self._run
            state["random"] = randoms
            state["rows"] = (self._history.steps, self._history.validations)
            step = self._position.step
            checkpoints.save(folder, step, state, self._options.keep_checkpoints)

    def _whole(self) -> dict[str, Any]:
        """Return what all parts hold, on the first rank; anything on others."""
        strategy = self._strategy
        return {
            "net": strategy.whole(strategy.net.state_dict()),
            "optimizer": strategy.whole_of_optimizer(self._optimizer.state_dict()),
            **{name: part.state_dict() for name, part in self._parts.items()},
        }

    def resume(self) -> None:
        """Go on where a checkpoint was written, if that was asked for; every rank reads it."""
        state = self._own() or self._chosen()
        if state is None:
            return
        self._strategy.net.load_state_dict(self._strategy.own(state["net"]))
        optimizer = self._strategy.own_of_optimizer(state["optimizer"])
        self._optimizer.load_state_dict(optimizer)
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        for name in asdict(self._position):
            setattr(self._position, name, state[name])
        self._history.steps, self._history.validations = state["rows"]
        if self._ranks.rank < len(state["random"]):
            checkpoints.set_random_state(state["random"][self._ranks.rank])

    def _own(self) -> dict[str, Any] | None:
        """Return what this training has written, before an engine died and it started again."""
        folder = self._options.checkpoint_folder
        if not self._options.max_restarts or folder is None or not checkpoints.found(folder):
            return None
        state = self._read(folder)
        return state if self._run and state["run"] == self._run else None

    def _chosen(self) -> dict[str, Any] | None:
        """Return what the options ask for."""
        place = self._options.resume
        if place is True:
            place = self._options.checkpoint_folder
        return self._read(place) if place else None

    def _read(self, place: str | Path) -> dict[str, Any]:
        strategy = self._strategy
        return checkpoints.load(place, strategy.checkpoint_device, is_mapped=strategy.is_split)
