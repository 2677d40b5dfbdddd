"""Waits until the GPUs asked for are free: `%parpool --wait`."""

import threading
import time
from collections.abc import Callable

from jupyter_mgpu.errors import GpuBusyError
from jupyter_mgpu.gpus.choosing import choose
from jupyter_mgpu.gpus.request import Request
from jupyter_mgpu.gpus.slots import Choice
from jupyter_mgpu.leases import LeaseBook

POLL_S = 1.0


def wait_for_free(
    request: Request,
    *,
    timeout: float | None = None,
    on_wait: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
    book: LeaseBook | None = None,
    poll_s: float = POLL_S,
) -> Choice:
    """Choose as soon as it is possible. An interrupt ends the wait and takes nothing.

    Args:
        request: What the pool asks for.
        timeout: Seconds; None waits without end.
        on_wait: Told whom it waits for, at first and whenever that changes.
        stop: Ends the wait when set, with the error that names the holders.
        book: The leases; the host's by default.
        poll_s: Seconds between looks.

    Raises:
        GpuBusyError: If the GPUs are still in use when the time is up; it names the holders.
        SelectionError: If waiting cannot help.
    """
    stop = stop or threading.Event()
    deadline_s = None if timeout is None else time.monotonic() + timeout
    told: tuple[str, ...] | None = None
    while True:
        try:
            return choose(request, book)
        except GpuBusyError as error:
            left_s = poll_s if deadline_s is None else min(poll_s, deadline_s - time.monotonic())
            if left_s <= 0 or stop.is_set():
                raise
            if on_wait is not None and error.holders != told:
                on_wait(f"Waiting: {'; '.join(error.holders)}.")
                told = error.holders
        stop.wait(left_s)
