"""`compare`: several trainings or tasks in one plot."""

from collections.abc import Iterable
from typing import Any

from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.futures import TaskFuture
from jupyter_mgpu.widgets.curves import MIN_POINTS
from jupyter_mgpu.widgets.showing import show
from jupyter_mgpu.widgets.states import State
from jupyter_mgpu.widgets.states.training import compare_state
from jupyter_mgpu.widgets.training_source import FutureTraining, future_training

MAX_TRAININGS = 32


class CompareSource:
    """Several trainings.

    Args:
        trainings: What is compared.
    """

    def __init__(self, trainings: list[FutureTraining]) -> None:
        self._trainings = trainings

    def state(self, limit: int) -> State:
        """Make the state of all; the points are shared among them."""
        each = max(MIN_POINTS, 4 * limit // max(len(self._trainings), 4))
        return compare_state(training.state(each) for training in self._trainings)

    def has_ended(self) -> bool:
        """Whether all have ended."""
        return all(training.has_ended() for training in self._trainings)

    def act(self, action: dict[str, Any]) -> str:
        """Refuse: it only shows."""
        raise MgpuError(f"{action['action']!r} was asked for, but a comparison only shows.")


def compare(futures: Iterable[TaskFuture]) -> None:
    """Show the curves of several trainings or tasks in one plot, live until all have ended.

    Args:
        futures: Of tasks that report metrics, at most 32; queued, running or ended.

    Raises:
        TypeError: If something else than futures is given.
        ValueError: If there are none, or too many to be told apart.

    Example:
        >>> compare([parfeval(train, net, data, loss, options) for options in choices])
    """
    futures = list(futures)
    for future in futures:
        if not isinstance(future, TaskFuture):
            raise TypeError(
                f"A {type(future).__name__} was given where the future of a task is compared. Give "
                "what parfeval, or train with wait=False, returns."
            )
    if not 0 < len(futures) <= MAX_TRAININGS:
        raise ValueError(
            f"{len(futures)} futures were given, but 1 to {MAX_TRAININGS} can be compared."
        )
    show(CompareSource([future_training(future) for future in futures]))
