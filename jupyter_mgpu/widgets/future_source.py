"""What the sources of a future's views share: they let it go at its end, and can stop it."""

from typing import Any

from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.futures import TaskFuture
from jupyter_mgpu.pools import open_pools

STOPS = {"request_stop": "step", "stop_after_epoch": "epoch"}
"""What a task is asked to end after, by the name of the button's action."""
CONTROLS = (*STOPS, "cancel")


class FutureSource:
    """One task, as long as it has not ended.

    Args:
        future: It is let go when it has ended: its result may be large.
    """

    def __init__(self, future: TaskFuture) -> None:
        self._future: TaskFuture | None = future
        self._name = future.name
        self._pool = pool_of(future)

    def has_ended(self) -> bool:
        """Whether it has ended."""
        future = self._future
        return future is None or future.done()

    def act(self, action: dict[str, Any]) -> str:
        """Stop it; see `Source.act`."""
        future = self._future
        if future is None or future.done():
            raise MgpuError(f"{self._name!r} has ended.")
        return ask(future, self._name, action["action"])


def pool_of(future: TaskFuture) -> str:
    """Return the name of the open pool that runs a task; empty if there is none."""
    found = (pool.name for pool in open_pools() if any(task is future for task in pool.tasks()))
    return next(found, "")


def ask(task: Any, name: str, action: str) -> str:
    """Stop a task in the way of an action, and say what was done.

    Args:
        task: A future, or what takes `request_stop(after)`.
        name: What it is called.
        action: request_stop, stop_after_epoch or cancel.

    Raises:
        MgpuError: If that cannot be asked of it.
    """
    if action in STOPS:
        task.request_stop(STOPS[action])
        return f"'{name}' was asked to stop after its {STOPS[action]}."
    if action == "cancel" and hasattr(task, "cancel"):
        task.cancel()
        return f"'{name}' was cancelled."
    raise MgpuError(f"{action!r} was asked for, but '{name}' takes: {', '.join(CONTROLS)}.")
