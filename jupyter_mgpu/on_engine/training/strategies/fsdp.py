"""Fully sharded training: each rank has a part of every parameter and a share of each batch."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from jupyter_mgpu.on_engine.training.metrics import Metric
from jupyter_mgpu.on_engine.training.ranks import Clock
from jupyter_mgpu.on_engine.training.setup import Precision
from jupyter_mgpu.on_engine.training.step import Stepper, Trial
from jupyter_mgpu.on_engine.training.strategies.sharding.mesh import mesh_of
from jupyter_mgpu.on_engine.training.strategies.sharding.states import (
    gathered,
    gathered_state,
    part_of,
    part_of_optimizer,
)
from jupyter_mgpu.on_engine.training.strategies.sharding.traffic import Gathering, Reducing
from jupyter_mgpu.on_engine.training.strategies.sharding.units import units_of
from jupyter_mgpu.on_engine.training.strategies.strategy import State, Strategy
from jupyter_mgpu.on_engine.training.trees import leaves_of, map_leaves


class FullySharded(Strategy):
    """torch's fully_shard: parameters, gradients and the optimizer's states are divided.

    A unit's parameters are gathered when it computes, and let go of after it; see `units_of`.
    """

    is_joint = True
    is_split = True

    def _prepared(self, net: Any) -> Any:
        """Divide the parameters; each unit comes to the device on its own, then its part stays."""
        from torch.distributed.fsdp import fully_shard

        net = self._normalized(net)
        self._aliases = _aliases(net)
        self._is_begun = False
        self._optimizer: Any = None
        self._waited = Clock()
        mesh = mesh_of(self._ranks)
        _make_contiguous(net)
        for unit in (*units_of(net), net):
            # Before torch's own hooks, which an output that is a view would lose.
            unit.register_forward_hook(_without_views)
            fully_shard(unit, mesh=mesh)
            if mesh.device_type == "cpu":
                unit.set_custom_all_gather(Gathering(self._waited))
                unit.set_custom_reduce_scatter(Reducing(self._waited))
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
        with self._whole_gradients(), _calls_told():
            unused = trial()
        names = [name for found in self._ranks.gather(unused) for name in found]
        if names:
            raise ValueError(
                "The loss does not depend on these parameters: "
                f"{', '.join(dict.fromkeys(names[:8]))}. Freeze them by requires_grad_(False)."
            )

    @contextlib.contextmanager
    def _whole_gradients(self) -> Iterator[None]:
        """Keep gradients whole and on this rank, and drop them at the end."""
        self.net.set_requires_gradient_sync(False)
        self.net.set_reshard_after_backward(False)
        yield
        for parameter in self.net.parameters():
            parameter.grad = None
        self._let_go()
        self.net.set_requires_gradient_sync(True)
        self.net.set_reshard_after_backward(True)

    def _let_go(self) -> None:
        from torch.distributed.fsdp import FSDPModule

        for module in self.net.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

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

    @property
    def checkpoint_device(self) -> str:
        """Where a whole state is read to: it may be more than a GPU holds."""
        return "cpu"

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
            for number, values in state["state"].items()
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
        except (RuntimeError, NotImplementedError) as error:
            kind = type(self._optimizer).__name__
            error.add_note(
                f"strategy is 'fsdp', so the optimizer {kind} works on parts of parameters, which "
                "not all can. AdamW, Adam, SGD and RMSprop can; strategy 'ddp' takes any."
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


def _make_contiguous(net: Any) -> None:
    """Let parameters lie in the order of their indices, as torch cuts them there."""
    for parameter in net.parameters():
        if not parameter.is_contiguous():
            parameter.data = parameter.data.contiguous()


def _without_views(module: Any, inputs: Any, output: Any) -> Any:  # noqa: ARG001 - torch's order
    """Copy outputs that are views: a change in place would take torch's hooks from them."""
    if not any(map(_is_view, leaves_of(output))):
        return None  # as it is
    return map_leaves(lambda leaf: leaf.clone() if _is_view(leaf) else leaf, output)


def _is_view(leaf: Any) -> bool:
    # torch has no other way to ask.
    return bool(getattr(leaf, "requires_grad", False)) and leaf._is_view()  # noqa: SLF001


@contextlib.contextmanager
def _calls_told() -> Iterator[None]:
    """Note on an error that a layer's parameters were used without calling the layer."""
    try:
        yield
    except RuntimeError as error:
        if "mixed torch.Tensor and DTensor" in str(error):
            error.add_note(
                "With strategy 'fsdp' a layer has its parameters only while it is called. Call "
                "the network, and its layers in it, instead of using their weights directly."
            )
        raise
