"""What a strategy does, and the simplest one: the whole network on one device."""

import contextlib
from collections.abc import Mapping
from typing import Any

from jupyter_mgpu.on_engine.training.forward import Forward
from jupyter_mgpu.on_engine.training.metrics import Metric
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.setup import Precision
from jupyter_mgpu.on_engine.training.sources import Source, make_source
from jupyter_mgpu.on_engine.training.step import Stepper, Trial

State = dict[str, Any]


class Strategy:
    """One rank's part of a network that is trained; this one has all of it, alone.

    All ranks call each method at the same step. What is called whole is the same for any strategy
    and any number of ranks, so that checkpoints fit all of them.

    Args:
        net: The network; it may be changed in place.
        options: What was asked for.
        ranks: Who trains.
        data: What to train with, where that tells how to share the network.

    Attributes:
        net: What this rank has of the network, on its device; the optimizer is made of it.
        module: What is called in training.
        sharing: Who shares the samples of each batch.
        note: How the options were read, in a sentence, if there is something to tell.
        is_joint: Whether a rank must call the network when others do, without samples as well.
        divides_batches: Whether each rank has a share of each batch; else all see whole ones.
        is_split: Whether a rank's states are only a part of the whole ones.
    """

    note = ""
    is_joint = False
    divides_batches = True
    is_split = False

    def __init__(self, net: Any, options: TrainingOptions, ranks: Ranks, data: Any = None) -> None:
        self._options = options
        self._ranks = ranks
        self._data = data
        self.sharing = ranks
        self.net = self.module = self._prepared(net)
        del self._data

    def _prepared(self, net: Any) -> Any:
        """Bring the network to its device."""
        return self._compiled(self._normalized(net).to(self._ranks.device))

    def _normalized(self, net: Any) -> Any:
        """Let the network normalize over all ranks, if that was asked for."""
        if not self._options.sync_batch_norm or self._ranks.is_alone:
            return net
        from jupyter_mgpu.on_engine.training.sync_batch_norm import convert

        return convert(net, self._ranks)

    def _compiled(self, net: Any) -> Any:
        """Compile the network, if that was asked for."""
        if self._options.compile:
            net.compile()
        return net

    @property
    def checkpoint_device(self) -> str:
        """Where a whole state is read to; it may be more than a rank's device holds."""
        return "cpu" if self.is_split else self._ranks.device

    @property
    def options(self) -> TrainingOptions:
        """What was asked for, as this strategy reads it."""
        return self._options

    # --- data ----------------------------------------------------------------------------

    def source(self, data: Any, options: TrainingOptions, what: str) -> Source:
        """Make what yields this rank's parts of batches; see `make_source`."""
        return make_source(data, self.sharing, options, what)

    # --- steps ---------------------------------------------------------------------------

    def stepper(
        self, loss: Any, metrics: Mapping[str, Metric], optimizer: Any, precision: Precision
    ) -> Stepper:
        """Make what computes the gradients of a batch and updates the network."""
        return Stepper(self, loss, metrics, optimizer, precision, self._options, self._ranks)

    def begin(self, trial: Trial) -> None:
        """Get ready to exchange gradients, before the first step.

        Args:
            trial: Computes gradients of the first batch, leaves no trace, and returns the names of
                the parameters that got none.

        Raises:
            ValueError: If a parameter has no gradient: the ranks would wait for it.
        """

    def unsynced(self) -> contextlib.AbstractContextManager[None]:
        """Keep gradients on this rank, as more of them will be added."""
        return contextlib.nullcontext()

    def clip(self, norm: float) -> None:
        """Limit the norm of all gradients of the whole network together."""
        import torch

        torch.nn.utils.clip_grad_norm_(self.net.parameters(), norm)

    def exchange_s(self, num_steps: int) -> float:  # noqa: ARG002 - nothing is exchanged here
        """Tell how long the exchange between ranks has taken, beyond what ran beside it."""
        return 0.0

    # --- outputs -------------------------------------------------------------------------

    def outputs(self, forward: Forward, batch: Any) -> tuple[Any, Any] | None:
        """Compute output and target of a batch without training; None where another rank does."""
        found: tuple[Any, Any] = forward(self.net, batch)
        return found

    # --- states --------------------------------------------------------------------------

    def whole(self, state: State) -> State:
        """Return the whole of a state as `net.state_dict()`, on the first rank; any on others."""
        return state

    def own(self, state: State) -> State:
        """Return this rank's part of a whole state of the network."""
        return state

    def whole_of_optimizer(self, state: State) -> State:
        """Return the whole of `optimizer.state_dict()`, on the first rank; anything on others."""
        return state

    def own_of_optimizer(self, state: State) -> State:
        """Return this rank's part of the whole state of an optimizer."""
        return state
