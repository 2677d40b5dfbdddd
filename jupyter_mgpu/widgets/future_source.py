"""What the sources of a future's views share: they let it go at its end, and can stop it."""

from typing import Any

from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.futures import TaskFuture
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.pools import open_pools
from jupyter_mgpu.widgets.states.parts import Place

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
        pool = pool_of(future)
        self._pool = pool.name if pool is not None else ""
        self._pool_id = id_of_pool(pool) if pool is not None else None

    def has_ended(self) -> bool:
        """Whether it has ended."""
        future = self._future
        return future is None or future.done()

    def _place(self, future: TaskFuture) -> Place | None:
        """Return how a Jupyter server finds the task now."""
        return place_of(self._pool_id, future) if self._pool_id is not None else None

    def act(self, action: dict[str, Any]) -> str:
        """Stop it; see `Source.act`."""
        future = self._future
        if future is None or future.done():
            raise MgpuError(f"{self._name!r} has ended.")
        return ask(future, self._name, action["action"])


def pool_of(future: TaskFuture) -> Pool | None:
    """Return the open pool that runs a task."""
    found = (pool for pool in open_pools() if any(task is future for task in pool.tasks()))
    return next(found, None)


def id_of_pool(pool: Pool) -> str:
    """Return the id that other processes know a pool by."""
    return pool.owner.record_path.stem


def place_of(pool_id: str, future: TaskFuture) -> Place | None:
    """Return how a Jupyter server finds a task; None while nothing of it is with the owner."""
    # Loops and trainings are of several tasks, or of one after another.
    task = getattr(future._control, "owned_id", future.id)  # noqa: SLF001 - what a future asks of its pool
    return {"pool": pool_id, "task": task} if task is not None else None


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
