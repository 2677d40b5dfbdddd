"""A moving average of a network's weights, which often does better than the last ones."""

import contextlib
from collections.abc import Iterator
from typing import Any

from jupyter_mgpu.on_engine.training.strategies.strategy import Strategy


class Average:
    """Follows a network: after each step, average = decay * average + (1 - decay) * weights.

    Args:
        strategy: With what this rank has of the network.
        decay: Close to 1; None keeps no average, and the network stands for it.
    """

    def __init__(self, strategy: Strategy, decay: float | None) -> None:
        self._strategy = strategy
        self._net = net = strategy.net
        self._decay = decay
        self._num_updates = 0
        self._state = None if decay is None else copied(net.state_dict())

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
        own = copied(self._net.state_dict())
        self._net.load_state_dict(self._state)
        try:
            yield
        finally:
            self._net.load_state_dict(own)

    @property
    def state(self) -> dict[str, Any]:
        """This rank's part of the weights that are handed out: the average, or the network's."""
        return dict(self._net.state_dict()) if self._state is None else self._state

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes, on the first rank; all ranks call it."""
        state = None if self._state is None else self._strategy.whole(self._state)
        return {"state": state, "num_updates": self._num_updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another training stopped; from its weights, if it kept no average."""
        if self._decay is not None:
            whole = state["state"]
            own = self._strategy.own(whole) if whole else self._net.state_dict()
            self._state = copied(own)
            self._num_updates = state["num_updates"]


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """Copy the tensors of a state."""
    return {name: value.detach().clone() for name, value in state.items()}
