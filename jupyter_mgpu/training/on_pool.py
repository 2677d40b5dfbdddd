"""Trains one network on several ranks at the same time."""

import contextlib
import threading
import uuid
from datetime import UTC, datetime
from typing import Any

from jupyter_mgpu import packing
from jupyter_mgpu.client import pack_call
from jupyter_mgpu.errors import EngineDiedError, PoolClosedError
from jupyter_mgpu.futures import CancelledError, TaskFuture, settle
from jupyter_mgpu.gangs import Gang
from jupyter_mgpu.on_engine.stop_wish import StopAfter
from jupyter_mgpu.on_engine.training.entry import back_to, train_on_rank
from jupyter_mgpu.on_engine.training.history import History
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.output import notices, publisher
from jupyter_mgpu.output.cell_output import CellOutput
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.training.calls import prepare_call
from jupyter_mgpu.training.display import open_display
from jupyter_mgpu.training.places import PoolPlace
from jupyter_mgpu.wire import Frame, Header

MUCH_EXCHANGE = 0.3
"""From here on a word is said about it."""
STOPPING = "stops after this step; a second Stop interrupts"


class PoolTraining:
    """One training on ranks of a pool, from its submission to the network that comes back.

    Args:
        place: Where.
        net: The network; it is not changed.
        data: What to train with.
        loss: Takes output and target.
        options: How.
        name: What it is called.
    """

    def __init__(
        self,
        place: PoolPlace,
        net: Any,
        data: Any,
        loss: Any,
        options: TrainingOptions,
        name: str,
    ) -> None:
        self._place = place
        self._pool = place.pool
        self._net = net
        self._options = options
        self._cell = publisher.capture()
        self._gang: _TrainingGang | None = None
        self._stop_after: StopAfter | None = None
        submission = self._pool.submission
        self._future = TaskFuture(submission.next_id("train"), name, self, datetime.now(UTC))
        call = (net, data, loss, options, place.trainers, place.loads, uuid.uuid4().hex)
        # Another kernel that takes over a kept pool has no such network.
        args = (*call, self._pool.is_kept)
        self._frames = pack_call(train_on_rank, args, {}, self._pool.owner.store.place)
        submission.open_loop(self._future)
        self._view = open_display(self._cell, name, place.words, options, self._future)

    def start(self) -> TaskFuture:
        """Run it in a thread of its own, and return its future."""
        threading.Thread(target=self._run_for_future, name="mgpu-training", daemon=True).start()
        return self._future

    def _run_for_future(self) -> None:
        with contextlib.suppress(BaseException):  # the future has it
            self.run()

    def run(self) -> tuple[Any, History]:
        """Run it to its end.

        Returns:
            The trained network and its history.

        Raises:
            KeyboardInterrupt: At the second Stop.
            BaseException: What the first failing rank raised, with the others folded into it.
        """
        outcome = "failed"
        try:
            state, history = self._run_with_restarts()
            history.environment = self._place.words
            trained = (
                back_to(state, self._net) if self._pool.is_kept else _copy_with(self._net, state)
            )
            outcome = history.stopped
            if history.exchange_share > MUCH_EXCHANGE:
                self._view.note(_hint(history.exchange_share))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                outcome = "interrupted"
            elif self._future.cancelled():
                outcome = "cancelled"
            settle(self._future, error=error)
            raise
        else:
            settle(self._future, result=(trained, history))
            return trained, history
        finally:
            self._frames, self._gang = [], None  # the data, which a traceback would keep
            self._view.finish(outcome)
            self._pool.submission.loop_ended(self._future)

    def _run_with_restarts(self) -> tuple[Any, History]:
        for num_left in range(self._options.max_restarts, -1, -1):
            try:
                return self._run_once()
            except EngineDiedError as error:
                if not num_left:
                    raise
                notices.say(f"{error} The training starts again.")
        raise AssertionError("the last try returns or raises")

    def _run_once(self) -> tuple[Any, History]:
        rank = self._place.trainers[0]
        facts = {"recorded": True, "result_rank": rank} if self._pool.is_kept else {}
        call = prepare_call(self._pool, self._future.name, self._frames, self._cell, **facts)
        self._gang = gang = _TrainingGang(self, *call)
        if self._future.cancelled():
            raise CancelledError
        gang.run()
        _, frames = gang.replies[rank]
        state, history = packing.unpack(frames)
        return state, history

    def on_event(self, header: Header) -> None:
        """Take what the first rank tells of its progress."""
        future = self._future
        if header["op"] == "started" and future.started is None:
            future.started = datetime.now(UTC)
            future.rank = self._place.trainers[0]
            future.device = self._place.words
            future._is_running = True  # noqa: SLF001 - the future's own side of the pool
        elif header["op"] == "report":
            row = {"step": header["step"], **header["metrics"]}
            future.metrics.append(row)
            self._view.report(row)
            if self._stop_after is not None:  # since before there was a task to tell it to
                self.request_stop(future.id, self._stop_after)
        elif header["op"] == "note":
            self._view.note(header["text"])
        elif header["op"] == "row":
            self._view.row(header["row"])
        elif header["op"] == "progress":
            future.progress = header["value"]
            if header["step"] is not None:  # the training's own, not that of a callback
                self._view.progress(header["step"], header["total"])

    @property
    def owned_id(self) -> str | None:
        """The id of what runs on the pool now, as its owner has it."""
        gang = self._gang
        return gang.id if gang is not None else None

    # --- what the future asks ----------------------------------------------------------

    def cancel_task(self, task_id: str) -> None:  # noqa: ARG002 - there is only one
        """End the training now."""
        if self._gang is not None:
            self._pool.owner.cancel(self._gang.id)

    def request_stop(self, task_id: str, after: StopAfter) -> None:  # noqa: ARG002 - as above
        """Ask the training to end after its step or epoch, with the network as it is."""
        if self._stop_after != "step":
            self._stop_after = after
        if self._gang is not None:
            self._pool.owner.request_stop(self._gang.id, after)

    def show_task(self, future: TaskFuture) -> None:
        """Wait for the training; what it shows is in the cell that started it."""
        future.exception()


class _TrainingGang(Gang):
    """A gang whose first Stop is a wish."""

    def __init__(self, training: PoolTraining, task: Task, output: CellOutput) -> None:
        super().__init__(training._pool, task, output, lambda *_: None)  # noqa: SLF001 - same module
        self.id = task.id
        self._training = training
        self._was_asked = False

    def _submit(self) -> None:
        super()._submit()
        if self._training._future.cancelled():  # noqa: SLF001 - same module
            # Perhaps a moment ago, when the pool did not know the task yet.
            with contextlib.suppress(PoolClosedError):
                self._pool.owner.cancel(self.id)

    def listen(self, header: Header, frames: list[Frame]) -> bool:
        """Take an event."""
        self._training.on_event(header)
        return super().listen(header, frames)

    def on_stop(self) -> bool:
        """Ask the ranks to end by themselves, the first time; a wait for them ends at once."""
        if self._was_asked or not self._is_running:
            return False
        self._was_asked = True
        self._training.request_stop(self.id, "step")
        self._show(STOPPING)
        return True


def _hint(share: float) -> str:
    return (
        f"The ranks spent {share:.0%} of the time in exchange and waiting for each other. Small "
        "networks and batches are quicker on one device; a larger mini_batch_size helps."
    )


def _copy_with(net: Any, state: dict[str, Any]) -> Any:
    """Return a copy of a network with another state."""
    import copy

    trained = copy.deepcopy(net)
    trained.load_state_dict(state)
    return back_to(trained, net)
