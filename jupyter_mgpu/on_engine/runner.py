"""Runs tasks on the engine's main thread, one at a time, and always replies.

The path of a task: `submit` (main thread, from the event loop) -> queue -> `_start` -> unpack ->
user code -> pack -> `done`. Whatever raises on the way becomes the reply.
"""

import asyncio
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

from jupyter_mgpu import packing
from jupyter_mgpu.on_engine import (
    constants,
    failure,
    imports,
    process_group,
    reload,
    sent_modules,
)
from jupyter_mgpu.on_engine.cells import Cell
from jupyter_mgpu.on_engine.chunks import ChunkRun, receive
from jupyter_mgpu.on_engine.context import EngineContext, RunningTask
from jupyter_mgpu.on_engine.namespace import EngineNamespace
from jupyter_mgpu.on_engine.stop_wish import StopAfter
from jupyter_mgpu.on_engine.streams import TaskOutput
from jupyter_mgpu.wire import Frame, Header

RETRY_INTERRUPT_S = 0.02


class TaskInterrupted(BaseException):
    """Ends an awaiting cell; never seen by user code."""


class Runner:
    """The engine's task loop.

    Args:
        context: This engine.
        shell: The IPython shell whose namespace cells run in.
        namespace: What was sent to and rebound in that namespace.
        output: Captures what tasks print and show.
        loop: The main thread's event loop.
    """

    def __init__(
        self,
        context: EngineContext,
        shell: Any,
        namespace: EngineNamespace,
        output: TaskOutput,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._context = context
        self._shell = shell
        self._namespace = namespace
        self._output = output
        self._loop = loop
        self._queue: deque[tuple[Header, list[Frame]]] = deque()
        self._busy = False
        self.is_armed = False  # an interrupt may raise in user code now
        self._received = False  # the running cell's names
        self._awaiting: asyncio.Task[Any] | None = None
        self._interrupt_for: str | None = None
        self._is_delivered = False
        self._lock = threading.Lock()  # of what is running, and what was stopped before it ran
        self._stopped_early: deque[str] = deque(maxlen=100)
        self._asked_to_stop: deque[tuple[str, StopAfter]] = deque(maxlen=100)
        self._main = threading.main_thread().ident or 0

    # --- main thread -------------------------------------------------------------------

    def submit(self, header: Header, frames: list[Frame]) -> None:
        """Queue a task, or what is to be freed between two; it starts when those before it end."""
        self._queue.append((header, frames))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        while self._queue and not self._busy:
            header, frames = self._queue.popleft()
            if header["op"] == "free":
                constants.free(header["key"])
                continue
            self._busy = True
            pending = self._start(header, frames)
            if pending is None:
                self._busy = False

    def _start(self, header: Header, frames: list[Frame]) -> asyncio.Task[None] | None:
        """Run a task; returns the asyncio task when it awaits, else None."""
        task = RunningTask(header["task"])
        with self._lock:
            self._context.task = task
            is_stopped = task.id in self._stopped_early or header.get("is_stopped")
            for task_id, after in (*self._asked_to_stop, (task.id, header.get("stop_after"))):
                if task_id == task.id and after is not None:
                    task.wish.ask(after)
        self._received = False
        self._output.begin(task.id)
        is_cell = header["kind"] == "cell"
        try:
            if is_stopped:
                raise KeyboardInterrupt  # as if it had come a moment later
            self._prepare(header)
            if header["kind"] == "chunk":
                self._run_chunk(task, header, frames)
                return None
            if not is_cell:
                self._tell_begun(header)
                reply = self._guarded(lambda: self._call(frames, header.get("keep")))
                self._finish(header, reply)
                return None
            missing = self._namespace.receive(frames) if frames else []
            if missing:
                self._ask_again(task, missing)
                return None
            self._received = True
            frames.clear()  # a name that the cell rebinds must not live on in here
            cell = Cell(self._shell, header["source"], header.get("count", 0))
            self._namespace.before_cell()
            self._tell_begun(header)
            awaitable = self._guarded(cell.run)
            if awaitable is not None:
                pending = self._loop.create_task(self._await(header, cell, awaitable))
                self._awaiting = pending
                return pending
            self._finish(header, [])
        except BaseException as error:  # noqa: BLE001 - every request gets a reply
            self._fail(header, error)
        return None

    async def _await(self, header: Header, cell: Cell, awaitable: Coroutine[Any, Any, Any]) -> None:
        try:
            cell.finish(await _Steps(awaitable, self))
            self._finish(header, [])
        except (asyncio.CancelledError, TaskInterrupted):
            self._fail(header, KeyboardInterrupt())
        except BaseException as error:  # noqa: BLE001 - every request gets a reply
            self._fail(header, error)
        finally:
            self._awaiting = None
            self._busy = False
            self._loop.call_soon(self._next)

    def _prepare(self, header: Header) -> None:
        self._set_world_size(header["world_size"])
        if header.get("follow"):
            self._tell(reload.apply_follow(header["follow"]))
        if header.get("gang"):
            process_group.begin(header["generation"], header["gang"])
        else:
            process_group.begin_alone()
        if header.get("modules"):
            self._guarded(lambda: sent_modules.refresh(header["modules"]))
        self._guarded(reload.reload_changed)

    def _tell_begun(self, header: Header) -> None:
        """Let the owner know that this rank of a gang runs the user's code from here on."""
        if header.get("gang"):
            self._context.emit({"op": "begun", "task": header["task"]}, [])

    def _tell(self, notes: list[str]) -> None:
        for note in notes:
            sys.stderr.write(note + "\n")

    def _ask_again(self, task: RunningTask, missing: list[int]) -> None:
        """Ask for the rest: names by value that were dropped here, or a loop's function."""
        self._output.end(task.id)
        self._context.task = None
        self._context.emit({"op": "missing", "task": task.id, "handles": missing}, [])

    def _set_world_size(self, world_size: int) -> None:
        """Follow a pool that grew or shrank."""
        if world_size != self._context.world_size:
            self._context.world_size = self._shell.user_ns["world_size"] = world_size
            # Mostly an engine is a node of one process; else its node is its host, whose ranks
            # follow each other, and such pools only shrink.
            local_size, local_rank = (
                int(os.environ[name]) for name in ("LOCAL_WORLD_SIZE", "LOCAL_RANK")
            )
            if local_size > 1:
                left = world_size - (int(os.environ["RANK"]) - local_rank)
                os.environ["LOCAL_WORLD_SIZE"] = str(min(local_size, left))
            else:
                os.environ["GROUP_WORLD_SIZE"] = str(world_size)
            for name in ("WORLD_SIZE", "JAX_NUM_PROCESSES"):
                os.environ[name] = str(world_size)

    def _call(self, frames: list[Frame], keep: str | None) -> list[Frame]:
        function, args, kwargs = packing.unpack(frames)
        # Dropped before the call: a big argument must not live twice while the task runs.
        frames.clear()
        result = function(*args, **kwargs)
        self._output.flush_figures()
        if keep is not None:
            self._context.kept[keep] = result
            return []
        frames = packing.pack(result)
        del result  # what nothing else refers to need not be copied here
        return self._context.place(frames)

    def _run_chunk(self, task: RunningTask, header: Header, frames: list[Frame]) -> None:
        kept = self._context.kept
        if not self._guarded(lambda: receive(header, frames, kept)):
            self._ask_again(task, [])
            return
        chunk = ChunkRun(self._context, header, frames, self._guarded)
        reply = chunk.run()
        self._output.flush_figures()
        self._finish(header, reply)
        if chunk.has_failed:
            process_group.forget_tracebacks(self._shell)

    def _guarded(self, run: Callable[[], Any]) -> Any:
        """Call user code such that an interrupt raises in it, and only in it."""
        try:
            self.is_armed = True
            return run()
        finally:
            self.is_armed = False

    def _finish(self, header: Header, frames: list[Frame]) -> None:
        process_group.check()
        self._done(header, {"status": "ok"}, frames)

    def _fail(self, header: Header, error: BaseException) -> None:
        interrupted = isinstance(error, KeyboardInterrupt)
        record = failure.describe(error)
        record["aborted"] = process_group.caused_by_abort(error)
        frames = packing.pack_exception(error) or []
        reply = {"status": "error", "interrupted": interrupted, "failure": record}
        self._done(header, reply, frames)
        del error
        process_group.after_interrupt()
        process_group.forget_tracebacks(self._shell)

    def _done(self, header: Header, reply: Header, frames: list[Frame]) -> None:
        self._output.end(header["task"])
        reload.note_imports()
        if header["kind"] == "cell" and self._received:
            reply["namespace"] = self._namespace.after_cell(
                header["source"], failed=reply["status"] != "ok"
            )
        reply.update(op="done", task=header["task"], group=process_group.health())
        with self._lock:  # a signal is sent before, or never: it must not hit the next task
            self._context.task = None
            self._interrupt_for = None
        self._context.emit(reply, frames)

    # --- interrupts --------------------------------------------------------------------

    def on_sigint(self, _signum: int, frame: FrameType | None) -> None:
        """Handle SIGINT: raise in the user's code, or not at all."""
        task = self._context.task
        if task is None or (self._interrupt_for is not None and self._interrupt_for != task.id):
            return  # meant for a task that has ended
        if self._interrupt_for is not None and self._is_delivered:
            return  # one Stop raises once: what the task does then is its clean-up
        if not self.is_armed:
            if self._awaiting is not None:
                self._is_delivered = True
                self._loop.call_soon_threadsafe(self._awaiting.cancel)
            return
        if imports.in_protected_import(frame):
            return  # the control thread tries again until it can be delivered
        self._is_delivered = True
        raise KeyboardInterrupt

    def interrupt(self, task_id: str) -> None:
        """Interrupt a task; called from the control thread.

        It may come before the task itself does, since that has a channel of its own: then the
        task ends as soon as it starts.
        """
        with self._lock:
            task = self._context.task
            if task is None or task.id != task_id:
                self._stopped_early.append(task_id)
                return
            self._is_delivered = False
            self._interrupt_for = task_id
        threading.Thread(target=self._deliver, args=(task_id,), daemon=True).start()

    def _deliver(self, task_id: str) -> None:
        while not self._is_delivered:
            with self._lock:
                if self._interrupt_for != task_id:
                    return
                # To the main thread by name: a signal to the process may wake any other thread,
                # and then the main one's sleep or lock is not interrupted.
                signal.pthread_kill(self._main, signal.SIGINT)
            # Not an Event that the handler sets: a signal within `set` would wait for its lock.
            time.sleep(RETRY_INTERRUPT_S)

    def request_stop(self, task_id: str, after: StopAfter) -> None:
        """Ask a task to end by itself; `stop_requested()` tells it.

        Called from the control thread. Like an interrupt it may come before the task does.
        """
        with self._lock:
            self._asked_to_stop.append((task_id, after))
            task = self._context.task
            if task is not None and task.id == task_id:
                task.wish.ask(after)

    @property
    def running(self) -> str | None:
        """The id of the task that runs now."""
        task = self._context.task
        return task.id if task else None

    def main_stack(self) -> list[tuple[str, int, str]]:
        """Say where the main thread is: file, line and function, innermost last."""
        frame = sys._current_frames().get(self._main)  # noqa: SLF001 - the documented way in
        stack = []
        while frame is not None:
            stack.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        return stack[::-1]


class _Steps:
    """Awaits a coroutine such that an interrupt ends the coroutine and never the event loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], runner: Runner) -> None:
        self._coroutine = coroutine
        self._runner = runner

    def __await__(self) -> Any:
        send, value = self._coroutine.send, None
        while True:
            try:
                self._runner.is_armed = True
                try:
                    yielded = send(value)
                finally:
                    self._runner.is_armed = False
            except StopIteration as stop:
                return stop.value
            except KeyboardInterrupt:
                raise TaskInterrupted from None
            try:
                value = yield yielded
                send = self._coroutine.send
            except BaseException as error:  # noqa: BLE001 - handed on to the coroutine
                value, send = error, self._coroutine.throw
