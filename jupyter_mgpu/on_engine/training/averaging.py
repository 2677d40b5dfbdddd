"""A moving average of a network's weights, which often does better than the last ones."""

import contextlib
from collections.abc import Iterator
from typing import Any


class Average:
    """Follows a network: after each step, average = decay * average + (1 - decay) * weights.

    Args:
        net: The network.
        decay: Close to 1; None keeps no average, and the network stands for it.
    """

    def __init__(self, net: Any, decay: float | None) -> None:
        self._net = net
        self._decay = decay
        self._num_updates = 0
        self._state = None if decay is None else _copied(net.state_dict())

    def update(self) -> None:
        """Follow the network after a step."""
        if self._decay is None or self._state is None:
            return
        self._num_updates += 1
        # The first weights are random: a young average forgets sooner.
        decay = min(self._decay, (1 + self._num_updates) / (10 + self._num_updates))
        for name, value in self._net.state_dict().items():
            if value.is_floating_point():
                self._state[name].lerp_(value, 1 - decay)
            else:
                self._state[name].copy_(value)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the network have the averaged weights."""
        if self._state is None:
            yield
            return
        own = _copied(self._net.state_dict())
        self._net.load_state_dict(self._state)
        try:
            yield
        finally:
            self._net.load_state_dict(own)

    @property
    def state(self) -> dict[str, Any]:
        """The weights that are handed out: the average, or the network's own."""
        return dict(self._net.state_dict()) if self._state is None else self._state

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes."""
        return {"state": self._state, "num_updates": self._num_updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another training stopped; from its weights, if it kept no average."""
        if self._decay is not None:
            self._state = _copied(state["state"] or self._net.state_dict())
            self._num_updates = state["num_updates"]


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.detach().clone() for name, value in state.items()}
