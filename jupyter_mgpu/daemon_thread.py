"""Calls what may hang, in a thread that nobody ever waits for: not even the end of the process."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Answer = TypeVar("Answer")


def call_in_thread(function: Callable[[], Answer], name: str) -> "Future[Answer]":
    """Call a function in a daemon thread of its own.

    Returns:
        A future of what it returns or raises; it cannot be cancelled.
    """
    answer: Future[Answer] = Future()
    answer.set_running_or_notify_cancel()

    def call() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            answer.set_exception(error)

    threading.Thread(target=call, name=name, daemon=True).start()
    return answer
