"""Keeps a kernel from being culled as idle while its tasks run, or wait to."""

import threading
from collections.abc import Callable

from jupyter_mgpu.output.publisher import current_shell

BEAT_S = 5.0
"""Shorter than any sensible cull_idle_timeout."""


class Activity:
    """Tells the Jupyter server, every few seconds, that the kernel is at work.

    The server takes any message of a kernel for activity. Ours has a type that front ends do not
    show, and no parent, so that no cell takes it for its output.

    Args:
        is_active: Whether there is work; asked before each beat.
    """

    def __init__(self, is_active: Callable[[], bool]) -> None:
        self._is_active = is_active
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._kernel = _kernel()
        if self._kernel is not None:
            threading.Thread(target=self._beat, name="mgpu-activity", daemon=True).start()

    def wake(self) -> None:
        """Look now whether there is work."""
        self._wake.set()

    def close(self) -> None:
        """End the beats."""
        self._stop.set()
        self._wake.set()

    def _beat(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._wake.clear()
            while self._is_active() and not self._stop.wait(BEAT_S):
                kernel = self._kernel
                kernel.session.send(kernel.iopub_socket, "mgpu_activity", {}, parent={})  # type: ignore[attr-defined]


def _kernel() -> object | None:
    return getattr(current_shell(), "kernel", None)
