"""What an engine asks of its kernel, from any of its threads, and the answers.

An answer comes to the control thread: the one that asked waits in Python, where an interrupt
reaches it.
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jupyter_mgpu.wire import Frame, Header


@dataclass(slots=True)
class Answer:
    """An answer, or the wait for it."""

    task: str | None  # the task that ran when it was asked
    thread: int = field(default_factory=threading.get_ident)
    is_there: threading.Event = field(default_factory=threading.Event)
    is_interrupted: bool = False
    header: Header = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)


class Requests:
    """The open requests of one engine.

    Args:
        name: The engine's name.
        emit: Sends a message to the owner; any thread may call it.
        running: Returns the id of the task that runs now.
    """

    def __init__(
        self,
        name: str,
        emit: Callable[[Header, list[Any]], None],
        running: Callable[[], str | None],
    ) -> None:
        self._name = name
        self._emit = emit
        self._running = running
        self._numbers = itertools.count(1)
        self._open: dict[int, Answer] = {}

    def ask(
        self, header: Header, frames: Sequence[Frame] = (), *, timeout: float | None = None
    ) -> Answer:
        """Ask the kernel and wait for its answer.

        Args:
            header: `to` says who is asked; the rest is up to them.
            frames: What travels along.
            timeout: Seconds after which they are told to answer now.
        """
        number = next(self._numbers)
        answer = self._open[number] = Answer(self._running())
        address = {"op": "request", "to": header["to"], "id": number, "engine": self._name}
        try:
            self._emit({**address, **header}, list(frames))
            if not answer.is_there.wait(timeout):
                self._emit({**address, "do": "expire"}, [])
                answer.is_there.wait()
            if answer.is_interrupted:
                raise KeyboardInterrupt
            if answer.header.get("is_lent"):  # until we say that we have it
                self._emit({**address, "do": "taken"}, [])
        except BaseException:
            self._emit({**address, "do": "abandon"}, [])
            raise
        finally:
            self._open.pop(number, None)
        return answer

    def answered(self, header: Header, frames: list[Frame]) -> None:
        """Take an answer; called in the control thread."""
        answer = self._open.get(header["id"])
        if answer is not None:
            answer.header, answer.frames = header, frames
            answer.is_there.set()

    def interrupt(self, task: str) -> None:
        """Wake the threads of a task that is interrupted; a signal reaches the main one only."""
        main = threading.main_thread().ident
        for answer in list(self._open.values()):
            if answer.task == task and answer.thread != main and not answer.is_there.is_set():
                answer.is_interrupted = True
                answer.is_there.set()
