"""Calls a function of the user with the items of a queue, in the kernel's callback thread."""

from collections.abc import Callable
from typing import Any

from jupyter_mgpu import packing
from jupyter_mgpu.callback_thread import run_callback
from jupyter_mgpu.exchange import queues
from jupyter_mgpu.exchange.queues import QueueOptions
from jupyter_mgpu.output.cell_context import CellContext


class Listening:
    """One function that is called with each item.

    One item a time: other callbacks take their turn in between, and what waits stays in the queue,
    where it counts.

    Args:
        options: Which queue.
        fn: Takes an item; what it prints and raises is shown in the cell that runs now.
    """

    def __init__(self, options: QueueOptions, fn: Callable[[Any], Any]) -> None:
        self._options = options
        self._fn = fn
        self._cell = CellContext()
        self._is_due = False

    def wake(self) -> None:
        """Take the next item soon; called with the queues' lock held."""
        if not self._is_due:
            self._is_due = True
            run_callback(self._run)

    def _run(self) -> None:
        self._is_due = False
        frames = queues.take(self._options, self)
        if frames is None:
            return
        try:
            self._cell.run(self._fn, *packing.unpack(frames))
        except BaseException as error:  # noqa: BLE001 - shown in the cell that registered it
            name = getattr(self._fn, "__name__", "callback")
            self._cell.show_error(f"The callback {name!r} of a DataQueue failed:", error)
