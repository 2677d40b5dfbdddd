"""A thread that runs callbacks, one after the other."""

import queue
import threading
import weakref
from collections.abc import Callable


class CallbackThread:
    """Runs callbacks in order, in a thread that lives as long as this object.

    Args:
        name: The thread's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def run(self, callback: Callable[[], None]) -> None:
        """Run a callback after those that wait."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_run_callbacks, args=(self._waiting,), name=self._name, daemon=True
                )
                self._thread.start()
                weakref.finalize(self, self._waiting.put, None)
        self._waiting.put(callback)

    def drain(self) -> None:
        """Wait until what waits now has run; in a callback, do nothing."""
        if self._thread is None or self._thread is threading.current_thread():
            return
        have_run = threading.Event()
        self._waiting.put(have_run.set)
        have_run.wait()


def _run_callbacks(waiting: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
    while (callback := waiting.get()) is not None:
        callback()
        del callback  # it holds its future


run_callback = CallbackThread("mgpu-callbacks").run
"""Runs a user's callback in the one thread that runs them all, in order."""
