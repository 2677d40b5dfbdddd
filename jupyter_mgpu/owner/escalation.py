"""Ends what runs: interrupt, then abort its collectives, then replace its engine."""

import asyncio
from collections.abc import Callable

from jupyter_mgpu.engines import EngineState
from jupyter_mgpu.owner.engine_record import EngineRecord
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.wire import Header

ABORT_AFTER_S = 0.5
ABORT_EVERY_S = 0.25
TELL_AFTER_S = 1.2
REPLACE_AFTER_S = 5.0
REPLACE_IMPORT_AFTER_S = 60.0


class Escalation:
    """The steps of a Stop, for the ranks that still run a task.

    At 0 s SIGINT, with the task's id; from 0.5 s the ranks that do not move are freed from their
    collectives; at 1.2 s those left are told as stopping; at 5 s their engines are replaced.

    Args:
        engines: The pool's engines by rank.
        send_control: Sends to an engine's control thread.
        replace: Replaces an engine, with the reason.
        notify: Tells the client of an event.
    """

    def __init__(
        self,
        engines: dict[int, EngineRecord],
        send_control: Callable[[EngineRecord, Header], None],
        *,
        replace: Callable[[EngineRecord, str], None],
        notify: Callable[[Header], None],
    ) -> None:
        self._engines = engines
        self._send_control = send_control
        self._replace = replace
        self._notify = notify
        self._running: dict[str, asyncio.Task[None]] = {}

    def begin(self, task: Task) -> None:
        """Free a task's ranks; a second call while that goes on changes nothing."""
        if task.id not in self._running:
            job = asyncio.get_running_loop().create_task(self._escalate(task))
            self._running[task.id] = job
            job.add_done_callback(lambda _: self._running.pop(task.id, None))

    def force(self, task_id: str) -> None:
        """Replace the engines that still run a task, now."""
        for engine in list(self._engines.values()):
            if engine.task is not None and engine.task.id == task_id:
                self._give_up(engine, "at the second Stop")

    def close(self) -> None:
        """Leave everything as it is, because the pool ends."""
        for job in list(self._running.values()):
            job.cancel()

    async def _escalate(self, task: Task) -> None:
        clock = asyncio.get_running_loop().time
        begun_s = clock()
        for engine in self._left(task):
            self._send_control(engine, {"op": "interrupt", "task": task.id})
        await self._wait(task, ABORT_AFTER_S)
        is_told = False
        while self._left(task) and not self._is_due(task, clock() - begun_s):
            for engine in self._left(task):
                question = {"op": "rpc", "id": 0, "name": "abort_if_still"}
                self._send_control(engine, {**question, "args": {"task": task.id}})
            await self._wait(task, ABORT_EVERY_S)
            if not is_told and clock() - begun_s > TELL_AFTER_S:
                is_told = True
                self._tell(task)
        for engine in self._left(task):
            self._give_up(engine, f"because it did not stop within {REPLACE_AFTER_S:g} s")

    def _is_due(self, task: Task, age_s: float) -> bool:
        """Tell whether what is left must be replaced.

        An engine in the middle of importing a library, such as torch's compiler at the first
        optimizer step, is given the time: it would stay broken if the import was cut short. Its
        last word counts, however old: while a library is mapped it cannot speak.
        """
        imports = any(engine.is_importing for engine in self._left(task))
        return age_s >= (REPLACE_IMPORT_AFTER_S if imports else REPLACE_AFTER_S)

    def _tell(self, task: Task) -> None:
        left = self._left(task)
        for engine in left:
            engine.state = EngineState.STOPPING
        if left:
            ranks = [engine.rank for engine in left]
            self._notify({"op": "stopping", "task": task.id, "ranks": ranks})

    def _give_up(self, engine: EngineRecord, when: str) -> None:
        name = engine.task.name if engine.task else "a task"
        self._replace(
            engine, f"The engine of rank {engine.rank} was replaced {when}; it ran {name!r}."
        )

    def _left(self, task: Task) -> list[EngineRecord]:
        return [engine for engine in self._engines.values() if engine.task is task]

    async def _wait(self, task: Task, seconds: float) -> None:
        """Wait until no rank runs the task any more, at most for some seconds."""
        waits = [asyncio.ensure_future(engine.free.wait()) for engine in self._left(task)]
        if waits:
            _, pending = await asyncio.wait(waits, timeout=seconds)
            for wait in pending:
                wait.cancel()
