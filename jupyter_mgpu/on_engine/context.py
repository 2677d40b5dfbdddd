"""What code that runs on an engine knows about itself, and how it reports back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jupyter_mgpu.on_engine.requests import Requests
from jupyter_mgpu.on_engine.stop_wish import StopAfter, StopWish, check_after
from jupyter_mgpu.packing import Place

Emit = Callable[[dict[str, Any], list[Any]], None]
"""Sends one message to the owner: header and frames. Callable from any thread."""


@dataclass(slots=True)
class RunningTask:
    """One task that an engine works on now."""

    id: str
    wish: StopWish = field(default_factory=StopWish)


@dataclass(slots=True)
class EngineContext:
    """The engine that this process is."""

    rank: int
    world_size: int
    device: str
    emit: Emit
    namespace: Any  # the EngineNamespace
    shell: Any  # the IPython shell
    place: Place  # puts large results into shared memory
    requests: Requests  # asks the kernel
    task: RunningTask | None = None
    kept: dict[str, Any] = field(default_factory=dict)  # values that a kernel's Composite owns


_context: EngineContext | None = None


def enter(context: EngineContext) -> None:
    """Make this process an engine; called once, at its start."""
    global _context
    _context = context


def current() -> EngineContext | None:
    """Return this process's engine, or None in a kernel or a plain process."""
    return _context


def report(step: int | None = None, *, progress: float | None = None, **metrics: Any) -> None:
    """Send metrics of the running task to the notebook, and how far it is.

    Outside a task (a function tried out in the kernel) it does nothing.

    Args:
        step: The step or epoch that the metrics belong to.
        progress: How much of the task is done, from 0 to 1: views show a bar and the time left.
        **metrics: One number per name; a tensor or array of one element is taken as its number.

    Raises:
        TypeError: If a metric is not a number.
        ValueError: If `progress` is not between 0 and 1.

    Example:
        >>> report(step=3, progress=4 / 10, loss=0.25)
    """
    values = {name: _number(name, value) for name, value in metrics.items()}
    done = None if progress is None else _share("progress", progress)
    context = _context
    if context is None or context.task is None:
        return
    task = context.task.id
    if done is not None:
        header = {"op": "progress", "task": task, "value": done, "step": None, "total": None}
        context.emit(header, [])
    if values or step is not None or done is None:
        step = None if step is None else int(step)
        context.emit({"op": "report", "task": task, "step": step, "metrics": values}, [])


def stop_requested(after: StopAfter = "step") -> bool:
    """Tell whether the notebook asked the running task to end by itself.

    Args:
        after: What has just ended: a step, or an "epoch", where a loop asks once more.

    Returns:
        True after `future.request_stop()`; at the end of an epoch also after
        `future.request_stop(after="epoch")`. Always False outside a task.

    Raises:
        ValueError: If `after` is neither.

    Example:
        >>> for epoch in range(10):
        ...     train_one_epoch()  # ends early if stop_requested()
        ...     if stop_requested(after="epoch"):
        ...         break
    """
    check_after(after)
    context = _context
    return bool(context and context.task and context.task.wish.holds(after))


def read_value(name: str) -> Any:
    """Return a value of this engine: one kept for a Composite, or a variable.

    Raises:
        KeyError: If there is none.
    """
    engine = require()
    if name in engine.kept:
        return engine.kept[name]
    try:
        return engine.namespace.get(name)
    except (KeyError, NameError):
        raise KeyError(f"Rank {engine.rank} has no variable {name!r}.") from None


def assign_value(name: str, value: Any) -> None:
    """Set a variable of this engine."""
    require().namespace.set_value(name, value)


def delete_value(name: str) -> None:
    """Forget a variable or a kept value of this engine; harmless where there is none."""
    engine = require()
    engine.kept.pop(name, None)
    engine.namespace.delete(name)


def require() -> EngineContext:
    """Return this process's engine.

    Raises:
        RuntimeError: In a kernel or a plain process.
    """
    if _context is None:
        raise RuntimeError("This process is no engine of a pool.")
    return _context


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"The metric {name!r} is a {type(value).__name__}, but report takes numbers. "
            "Give one number per name, for example its mean."
        ) from None


def _share(name: str, value: Any) -> float:
    number = _number(name, value)
    if not 0 <= number <= 1:
        raise ValueError(
            f"{name} is {number:g}, but it is the part that is done, from 0 to 1, such as "
            "(step + 1) / num_steps."
        )
    return number
