"""What magics and functions show: each thing as a view in the cell that runs now."""

from typing import Any

from jupyter_mgpu.futures import TaskFuture
from jupyter_mgpu.output.publisher import Publisher
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.training.on_pool import PoolTraining
from jupyter_mgpu.widgets.gpus_source import gpus_source
from jupyter_mgpu.widgets.pool_source import pool_source
from jupyter_mgpu.widgets.showing import show
from jupyter_mgpu.widgets.sources import Source
from jupyter_mgpu.widgets.states import State
from jupyter_mgpu.widgets.tasks_source import task_source, tasks_source
from jupyter_mgpu.widgets.training_source import CellTraining, future_training


def show_pool(pool: Pool) -> None:
    """Show a pool until it ends."""
    show(pool_source(pool))


def show_gpus() -> None:
    """Show all GPUs of this machine."""
    show(gpus_source())


def show_tasks() -> None:
    """Show all tasks of this notebook."""
    show(tasks_source())


def show_future(future: TaskFuture) -> None:
    """Show a task: the curves of a training or of what it reports, else how far it is."""
    show(_source_of(future))


def show_above_diary(future: TaskFuture) -> None:
    """Show a task as `show_future` does, where what it prints stands below in full."""
    show(WithoutDiary(_source_of(future)))


def _source_of(future: TaskFuture) -> Source:
    is_training = isinstance(future._control, PoolTraining)  # noqa: SLF001 - what a future asks of its pool
    has_curves = is_training or bool(future.metrics)
    return future_training(future) if has_curves else task_source(future)


class WithoutDiary:
    """A source of one task whose diary is shown elsewhere.

    Args:
        source: The task's own.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.has_ended = source.has_ended
        self.act = source.act

    def state(self, limit: int) -> State:
        """Make the task's state without its diary."""
        state = self._source.state(limit)
        if state["kind"] == "tasks":
            return {**state, "tasks": [{**task, "diary": None} for task in state["tasks"]]}
        return {**state, "diary": None}


def open_training(place: Publisher, **about: Any) -> CellTraining:
    """Show a training in its cell; what is returned takes its progress."""
    training = CellTraining(**about)
    view = show(training, place)
    training.on_end = view.freeze
    return training
