"""Lets pools, futures and trainings show themselves as views, once `%load_ext` has done it."""

from collections.abc import Callable
from typing import Any

from jupyter_mgpu.futures import TaskFuture
from jupyter_mgpu.output import publisher, view_door
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.widgets import live, showing
from jupyter_mgpu.widgets.registry import views


def register(shell: Any) -> None:
    """Register with an IPython shell; in a terminal there is nothing to do."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None or getattr(shell, "_mgpu_shows_views", False):
        return
    shell._mgpu_shows_views = True  # noqa: SLF001 - our own mark
    showing.listen(kernel)
    formatter = shell.display_formatter.ipython_display_formatter
    formatter.for_type(Pool, _where_it_can_be_updated(live.show_pool))
    formatter.for_type(TaskFuture, _where_it_can_be_updated(live.show_future))
    view_door.register(live.open_training, live.show_above_diary)
    shell.events.register("post_run_cell", views.settle)


def _where_it_can_be_updated(show: Callable[[Any], None]) -> Callable[[Any], None]:
    """Leave it to the plain repr elsewhere, as in a captured cell."""

    def show_or_pass(thing: Any) -> None:
        if not publisher.capture().can_update:
            raise NotImplementedError  # IPython then takes the next formatter
        show(thing)

    return show_or_pass
