"""Fully sharded training: each rank has a part of every parameter and a share of each batch."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from jupyter_mgpu.on_engine.training.metrics import Metric
from jupyter_mgpu.on_engine.training.ranks import Clock
from jupyter_mgpu.on_engine.training.setup import Precision
from jupyter_mgpu.on_engine.training.step import Stepper, Trial
from jupyter_mgpu.on_engine.training.strategies.sharding.dividing import divide
from jupyter_mgpu.on_engine.training.strategies.sharding.states import (
    gathered,
    gathered_state,
    part_of,
    part_of_optimizer,
)
from jupyter_mgpu.on_engine.training.strategies.sharding.trial import gradients_seen
from jupyter_mgpu.on_engine.training.strategies.strategy import State, Strategy


class FullySharded(Strategy):
    """torch's fully_shard: parameters, gradients and the optimizer's states are divided.

    All ranks compute a unit, such as a transformer's block, at the same time.
    """

    is_joint = True
    is_split = True

    def _prepared(self, net: Any) -> Any:
        """Divide the parameters."""
        net = self._normalized(net)
        self._aliases = _aliases(net)
        self._is_begun = False
        self._optimizer: Any = None
        self._waited = Clock()
        counts = divide(net, self._ranks, self._waited)
        self.note = (
            f"strategy='fsdp': {sum(counts):,} parameters are divided over "
            f"{self._ranks.world_size} ranks and gathered in {len(counts)} pieces, of which the "
            f"largest has {max(counts):,}."
        )
        return self._compiled(net)

    # --- steps ---------------------------------------------------------------------------

    def stepper(
        self, loss: Any, metrics: Mapping[str, Metric], optimizer: Any, precision: Precision
    ) -> Stepper:
        """Make what computes the gradients of a batch and updates this rank's parts."""
        self._optimizer = optimizer
        return _ShardedStepper(
            self, loss, metrics, optimizer, precision, self._options, self._ranks
        )

    def begin(self, trial: Trial) -> None:
        """Look at the first batch, before gradients are exchanged.

        Raises:
            ValueError: If a parameter has no gradient on some rank: the others would wait for it.
        """
        if self._is_begun:
            return
        self._is_begun = True
        with gradients_seen(self.net) as seen, _calls_told():
            trial()
        trained = [name for name, one in self.net.named_parameters() if one.requires_grad]
        missing = self._ranks.gather([name for name in trained if name not in seen])
        unused = [name for name in trained if any(name in names for names in missing)]
        if unused:
            raise ValueError(
                f"The loss does not depend on these parameters: {', '.join(unused[:8])}. Freeze "
                "them by requires_grad_(False)."
            )

    @contextlib.contextmanager
    def unsynced(self) -> Iterator[None]:
        """Keep gradients on this rank, whole, as more of them will be added."""
        self.net.set_requires_gradient_sync(False)
        yield
        self.net.set_requires_gradient_sync(True)

    def exchange_s(self, num_steps: int) -> float:  # noqa: ARG002 - all of it is measured
        """Tell how long the exchange has taken; on GPUs without what runs beside the network."""
        return self._waited.seconds + self._ranks.waited.seconds

    # --- states --------------------------------------------------------------------------

    def whole(self, state: State) -> State:
        """Gather a state of the network on the CPU of the first rank."""
        return gathered_state(state, self._aliases, is_kept=self._ranks.is_first)

    def own(self, state: State) -> State:
        """Return this rank's part of a whole state of the network."""
        like = self.net.state_dict()
        return {name: part_of(value, like.get(name)) for name, value in state.items()}

    def whole_of_optimizer(self, state: State) -> State:
        """Gather a state of the optimizer on the CPU of the first rank."""
        found = {
            number: {
                name: gathered(value, is_kept=self._ranks.is_first)
                for name, value in values.items()
            }
            for number, values in sorted(state["state"].items())
        }
        return state | {"state": found}

    def own_of_optimizer(self, state: State) -> State:
        """Return this rank's part of the whole state of an optimizer."""
        return part_of_optimizer(self._optimizer, state)


class _ShardedStepper(Stepper):
    """A step whose optimizer works on parts of parameters."""

    def update(self) -> None:
        """Update this rank's parts by the gradients."""
        try:
            super().update()
        except RuntimeError as error:
            if any(word in str(error).lower() for word in ("dtensor", "sharding", "placement")):
                error.add_note(
                    f"strategy is 'fsdp', so the optimizer {type(self._optimizer).__name__} works "
                    "on parts of parameters, which not all can. AdamW, Adam, SGD and RMSprop can; "
                    "strategy 'ddp' takes any."
                )
            raise


def _aliases(net: Any) -> dict[str, str]:
    """Return the first name of each parameter that has several, by the others."""
    firsts: dict[int, str] = {}
    found = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        first = firsts.setdefault(id(parameter), name)
        if first != name:
            found[name] = first
    return found


@contextlib.contextmanager
def _calls_told() -> Iterator[None]:
    """Note on an error that a layer's parameters were used without calling the layer."""
    try:
        yield
    except RuntimeError as error:
        if "mixed torch.Tensor and DTensor" in str(error):
            error.add_note(
                "With strategy 'fsdp' a layer has its parameters only while it, or the block that "
                "it is in, is called. Call the network, and its modules in it, instead of using "
                "their weights or the layers inside them directly."
            )
        raise
