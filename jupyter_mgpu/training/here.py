"""Trains in this process, on one device."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from jupyter_mgpu.futures import TaskFuture
from jupyter_mgpu.on_engine import context
from jupyter_mgpu.on_engine.stop_wish import StopAfter, StopWish
from jupyter_mgpu.on_engine.training.entry import device_here, train_alone
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.watching import Watcher
from jupyter_mgpu.output import failures, publisher
from jupyter_mgpu.output.publisher import Publisher
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.start import pool_named
from jupyter_mgpu.training.display import open_display

STOPPING = "The training stops after this step; a second Stop interrupts it."


def train(net: Any, data: Any, loss: Any, options: TrainingOptions, name: str) -> Any:
    """Train in this process: the kernel, or an engine whose task this is."""
    device = device_here(options.execution_environment)
    if context.current() is not None:
        watcher = Watcher(context.report, context.stop_requested)
        trained, history = train_alone(net, data, loss, options, device, watcher)
        history.environment = device
        return trained, history
    cell = publisher.capture()
    wish = StopWish()
    view = open_display(cell, name, device, options, _Controls(wish))
    watcher = Watcher(
        report=lambda **row: view.report(row),
        stop_requested=wish.holds,
        show=view.row,
        progress=view.progress,
        note=view.note,
    )
    outcome = "failed"
    try:
        with failures.own_lines(), _first_stop_asks(wish, cell):
            trained, history = train_alone(net, data, loss, options, device, watcher)
        history.environment = device
        outcome = history.stopped
    except KeyboardInterrupt:
        outcome = "interrupted"
        raise
    finally:
        view.finish(outcome)
    return trained, history


class _Controls:
    """What a view can ask of a training in this process."""

    def __init__(self, wish: StopWish) -> None:
        self._wish = wish

    def request_stop(self, after: StopAfter) -> None:
        """Ask it to end after its step or its epoch."""
        self._wish.ask(after)


@contextlib.contextmanager
def _first_stop_asks(wish: StopWish, cell: Publisher) -> Iterator[None]:
    """Let the first Stop be a wish, and the second one an interrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def on_stop(number: int, frame: FrameType | None) -> None:
        if wish.holds() and callable(before):
            before(number, frame)
        wish.ask()
        # A thread of its own: this one may be within the very functions that show something.
        threading.Thread(target=cell.stream, args=("stdout", STOPPING + "\n")).start()

    signal.signal(signal.SIGINT, on_stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def train_in_background(
    net: Any, data: Any, loss: Any, options: TrainingOptions, name: str, pool: Pool | None
) -> TaskFuture:
    """Train on the next free engine of a pool."""
    arguments = (net, data, loss, options, name)
    return (pool or pool_named(None)).submit_task(train, arguments, name=name)
