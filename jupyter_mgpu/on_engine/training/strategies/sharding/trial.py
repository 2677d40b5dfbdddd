"""Finds which parameters get a gradient, while none is kept: a rank cannot hold all of them."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def gradients_seen(net: Any) -> Iterator[set[str]]:
    """Let gradients be computed, stay on this rank and be dropped at once.

    Args:
        net: A divided network.

    Yields:
        The names of the parameters that have got one, which grows meanwhile.
    """
    import torch
    from torch.distributed.fsdp import FSDPModule

    seen: set[str] = set()
    handles: list[Any] = []
    units = [(f"{name}." * bool(name), one) for name, one in net.named_modules()]
    with contextlib.ExitStack() as stack:
        for prefix, unit in units:
            if isinstance(unit, FSDPModule):
                # After torch's own, which gathers the parameters.
                hook = _Watch(prefix, seen, handles)
                stack.callback(unit.register_forward_pre_hook(hook).remove)
        net.set_requires_gradient_sync(False)
        # A compiled network would be compiled with these hooks.
        with torch.compiler.set_stance("force_eager"):
            yield seen
        net.set_requires_gradient_sync(True)
        for handle in handles:
            handle.remove()


class _Watch:
    """Watches the parameters of a unit that is called."""

    def __init__(self, prefix: str, seen: set[str], handles: list[Any]) -> None:
        self._prefix = prefix
        self._seen = seen
        self._handles = handles

    def __call__(self, unit: Any, inputs: Any) -> None:  # noqa: ARG002 - torch's order
        from torch.distributed.tensor import DTensor

        for name, parameter in unit.named_parameters():
            if parameter.requires_grad and not isinstance(parameter, DTensor):
                take = self._taker(self._prefix + name)
                self._handles.append(parameter.register_post_accumulate_grad_hook(take))

    def _taker(self, name: str) -> Any:
        def take(parameter: Any) -> None:
            self._seen.add(name)
            parameter.grad = None

        return take
