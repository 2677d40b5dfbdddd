"""Trainings as sources of views: one that runs in a cell, and the future of one."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from jupyter_mgpu.client import first_line
from jupyter_mgpu.engines import TaskState
from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.futures import TaskFuture
from jupyter_mgpu.widgets.curves import Curves
from jupyter_mgpu.widgets.future_source import (
    CONTROLS,
    STOPS,
    FutureSource,
    ask,
    id_of_pool,
    place_of,
    pool_of,
)
from jupyter_mgpu.widgets.sources import shared
from jupyter_mgpu.widgets.states import State, parts
from jupyter_mgpu.widgets.states.training import DIARY_CHARS, TrainingFacts, training_state

RATE_OVER_S = 10.0
_ENDS = {"failed": "failed", "interrupted": "cancelled", "cancelled": "cancelled"}


class Pace:
    """How fast something went in the last seconds."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()

    def per_s(self, step: int | None) -> float | None:
        """Take how far it is now, and return its steps per second."""
        if step is None:
            return None
        now_s = time.monotonic()
        self._marks.append((now_s, step))
        while len(self._marks) > 2 and now_s - self._marks[0][0] > RATE_OVER_S:
            self._marks.popleft()
        begun_s, begun = self._marks[0]
        return (step - begun) / (now_s - begun_s) if now_s > begun_s else None


class CellTraining:
    """A training in its cell, told of its progress as it comes: display and source in one.

    Args:
        name: What people call it.
        environment: What it runs on, in words.
        controls: What can be asked of it: a future, or what takes `request_stop(after)`.
        epochs: How many there will be at most.
        batch_size: Samples per step, if known.
    """

    def __init__(
        self,
        name: str,
        environment: str,
        controls: Any,
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
    ) -> None:
        self._facts = TrainingFacts(
            name,
            "running",
            environment,
            epochs=epochs,
            batch_size=batch_size,
            started=parts.now(),
            controls=CONTROLS if hasattr(controls, "cancel") else tuple(STOPS),
        )
        self._asked = controls
        self._curves = Curves()
        self._pace = Pace()
        self._lock = threading.Lock()
        self.on_end: Callable[[], None] = lambda: None
        """Called when it has ended."""

    # --- what the training tells -------------------------------------------------------

    def report(self, row: dict[str, Any]) -> None:
        """Take the values of a step, or of a validation."""
        with self._lock:
            self._curves.add(row)

    def row(self, row: dict[str, Any]) -> None:
        """Take a row of the table; every value of it was reported, too."""

    def note(self, sentence: str) -> None:
        """Take a sentence that stands above."""
        with self._lock:
            self._facts.notes.append(sentence)

    def progress(self, step: int, total: int | None) -> None:
        """Take how far it is."""
        with self._lock:
            self._facts.step, self._facts.steps = step, total

    def finish(self, outcome: str) -> None:
        """Take why it has ended: failed, interrupted, cancelled, or in other words."""
        with self._lock:
            self._facts.state = _ENDS.get(outcome, "finished")
            self._facts.outcome = outcome
            self._facts.finished = parts.now()
        self._asked = None
        self.on_end()

    # --- what views ask ----------------------------------------------------------------

    def state(self, limit: int) -> State:
        """Make its state."""
        with self._lock:
            self._facts.steps_per_s = self._pace.per_s(self._facts.step)
            self._facts.place = self._find_place()
            return training_state(self._facts, self._curves, limit)

    def _find_place(self) -> parts.Place | None:
        asked = self._asked
        if not isinstance(asked, TaskFuture):
            return None  # it runs in the kernel
        pool = pool_of(asked)
        return place_of(id_of_pool(pool), asked) if pool is not None else None

    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self._facts.finished is not None

    def act(self, action: dict[str, Any]) -> str:
        """Stop it, in one of three ways; see `Source.act`."""
        asked = self._asked
        if asked is None:
            raise MgpuError(f"{self._facts.name!r} has ended.")
        words = ask(asked, self._facts.name, action["action"])
        if not self.has_ended():
            self._facts.state = "stopping"
        return words


class FutureTraining(FutureSource):
    """The future of a training, or of a task that reports metrics.

    Args:
        future: It is let go when it has ended: its result may be large.
    """

    def __init__(self, future: TaskFuture) -> None:
        super().__init__(future)
        self._curves = Curves()
        self._num_read = 0
        self._pace = Pace()
        self._is_stopping = False
        self._last = self._facts(future)
        self._lock = threading.Lock()

    def state(self, limit: int) -> State:
        """Make its state."""
        with self._lock:
            future = self._future
            if future is not None:
                has_ended = future.done()  # before all else is read
                self._read(future)
                self._last = self._facts(future)
                if has_ended:
                    self._future = None
            return training_state(self._last, self._curves, limit)

    def _read(self, future: TaskFuture) -> None:
        for row in future.metrics[self._num_read :]:
            self._curves.add(row)
            self._num_read += 1

    def _facts(self, future: TaskFuture) -> TrainingFacts:
        state = future.state
        step = self._curves.last_step
        facts = TrainingFacts(
            future.name,
            "stopping" if self._is_stopping and state is TaskState.RUNNING else str(state),
            future.device,
            f"{self._pool}/{future.id}",
            self._pool,
            step=step,
            steps=round(step / future.progress) if step and future.progress else None,
            started=parts.seconds_of(future.started),
            finished=parts.seconds_of(future.finished),
            steps_per_s=self._pace.per_s(step),
            diary=future.diary[-DIARY_CHARS:] or None,
            controls=CONTROLS if state is TaskState.RUNNING else ("cancel",),
            place=self._place(future),
        )
        if state is TaskState.FAILED:
            facts.error = first_line(future.exception())
        return facts

    def act(self, action: dict[str, Any]) -> str:
        """Stop it, in one of three ways; see `Source.act`."""
        words = super().act(action)
        self._is_stopping = True
        return words


def future_training(future: TaskFuture) -> FutureTraining:
    """Return the source of a future's views."""
    key = ("training", id(future), future.created)
    return shared(key, lambda: FutureTraining(future))
