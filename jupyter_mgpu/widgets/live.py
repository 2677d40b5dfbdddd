"""What magics and functions show: each thing as a view in the cell that runs now."""

from typing import Any

from jupyter_mgpu.futures import TaskFuture
from jupyter_mgpu.output.publisher import Publisher
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.training.on_pool import PoolTraining
from jupyter_mgpu.widgets.gpus_source import gpus_source
from jupyter_mgpu.widgets.pool_source import pool_source
from jupyter_mgpu.widgets.showing import show
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
    is_training = isinstance(future._control, PoolTraining)  # noqa: SLF001 - what a future asks of its pool
    has_curves = is_training or bool(future.metrics)
    show(future_training(future) if has_curves else task_source(future))


def open_training(place: Publisher, **about: Any) -> CellTraining:
    """Show a training in its cell; what is returned takes its progress."""
    training = CellTraining(**about)
    view = show(training, place)
    training.on_end = view.freeze
    return training
