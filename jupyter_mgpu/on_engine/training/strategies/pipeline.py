"""Pipelined training: each rank has some layers, and microbatches go from one to the next."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jupyter_mgpu.on_engine.training.forward import Forward
from jupyter_mgpu.on_engine.training.metrics import Metric
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.setup import Precision
from jupyter_mgpu.on_engine.training.sources import Source, make_source
from jupyter_mgpu.on_engine.training.strategies.pipelining.assembly import assembled
from jupyter_mgpu.on_engine.training.strategies.pipelining.holdings import (
    OwnUpdates,
    here,
    joined,
    own_of,
)
from jupyter_mgpu.on_engine.training.strategies.pipelining.needs import (
    OwnHalves,
    everybody,
    needed,
)
from jupyter_mgpu.on_engine.training.strategies.pipelining.plan import (
    num_parts,
    refuse_statistics,
)
from jupyter_mgpu.on_engine.training.strategies.pipelining.stepper import PipelineStepper
from jupyter_mgpu.on_engine.training.strategies.strategy import State, Strategy


class Pipeline(Strategy):
    """torch.distributed.pipelining: layers on different ranks, batches in microbatches.

    Args:
        net: The network; the layers of other ranks lose their numbers.
        options: What was asked for.
        ranks: Who trains.
        data: What to train with, of which one sample shows how large outputs are.

    Raises:
        ValueError: If the network cannot be cut into stages, or not into microbatches.
    """

    divides_batches = False
    is_split = True

    def __init__(self, net: Any, options: TrainingOptions, ranks: Ranks, data: Any = None) -> None:
        super().__init__(net, options, ranks, data)
        self.sharing = everybody(ranks)
        self._takes = {"inputs": self._flow.is_first, "targets": self._flow.is_last}

    def _prepared(self, net: Any) -> Any:
        """Cut the network, and keep what this rank computes."""
        options, ranks = self._options, self._ranks
        refuse_statistics(net, options)
        self._holding, self._flow, begins = assembled(net, self._data, options, ranks)
        self._options = replace(options, accumulate=num_parts(options, ranks.world_size))
        self.note = (
            f"strategy='pipeline': the ranks begin with {', '.join(map(repr, begins))}; a batch "
            f"goes through them in {self._options.accumulate} microbatches."
        )
        return net

    # --- data ----------------------------------------------------------------------------

    def source(self, data: Any, options: TrainingOptions, what: str) -> Source:
        """Make what yields batches; this rank loads what it uses, cut into microbatches."""
        own = needed(data, what, **self._takes)
        return OwnHalves(make_source(own, self.sharing, options, what), **self._takes)

    # --- steps ---------------------------------------------------------------------------

    def stepper(
        self, loss: Any, metrics: Mapping[str, Metric], optimizer: Any, precision: Precision
    ) -> Any:
        """Make what computes the gradients of a batch and updates this rank's layers."""
        self._updates = OwnUpdates(optimizer)
        return PipelineStepper(
            self.net,
            self._flow,
            self._holding,
            loss,
            metrics,
            optimizer,
            precision,
            self._options,
            self._ranks,
        )

    # --- outputs -------------------------------------------------------------------------

    def outputs(self, forward: Forward, batch: Any) -> tuple[Any, Any] | None:  # noqa: ARG002 - the stages have their own
        """Compute output and target of a batch, on the last rank; None on others."""
        inputs, target = batch
        rows = target if self._flow.is_first else inputs  # what is not loaded here is a number
        output = self._flow.output(inputs, rows)
        return (output, target) if self._flow.is_last else None

    # --- states --------------------------------------------------------------------------

    def whole(self, state: State) -> State:
        """Put the layers' states together, on the CPU of the first rank."""
        parts = self._ranks.collect(here(state))
        found = {name: one for part in parts for name, one in part.items()}
        return {name: found[name] for name in state if name in found}

    def own(self, state: State) -> State:
        """Return the state with this rank's layers only."""
        return own_of(state, self.net)

    def whole_of_optimizer(self, state: State) -> State:
        """Put the states of the ranks' optimizers together."""
        parts = self._ranks.collect(self._updates.here(state))
        return joined(parts) if parts else {}

    def own_of_optimizer(self, state: State) -> State:
        """Return what this rank's optimizer has of a whole state."""
        return self._updates.own_of(state)
