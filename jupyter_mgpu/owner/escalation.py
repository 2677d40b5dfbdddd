"""Ends what runs: interrupt, then abort its collectives, then replace its engine."""

import asyncio
from typing import TYPE_CHECKING

from jupyter_mgpu.engines import EngineState
from jupyter_mgpu.owner.engine_record import EngineRecord
from jupyter_mgpu.owner.queue import Task

if TYPE_CHECKING:
    from jupyter_mgpu.owner.owner import Owner

ABORT_AFTER_S = 0.5
ABORT_EVERY_S = 0.25
TELL_AFTER_S = 1.5
REPLACE_AFTER_S = 5.0


class Escalation:
    """The steps of a Stop, for the ranks that still run a task.

    At 0 s SIGINT, with the task's id; from 0.5 s the ranks that do not move are freed from their
    collectives; at 1.5 s those left are told as stopping; at 5 s their engines are replaced.

    Args:
        owner: Whose engines are meant.
    """

    def __init__(self, owner: "Owner") -> None:
        self._owner = owner
        self._running: dict[str, asyncio.Task[None]] = {}

    def begin(self, task_id: str, task: Task | None = None) -> None:
        """Interrupt a task's ranks; a second call while that goes on changes nothing."""
        task = task or self._owner.tasks.get(task_id)
        if task is None or task_id in self._running:
            return
        if task.state == "queued":
            self._owner.cancel(task_id)
            return
        job = self._owner.spawn(self._escalate(task))
        self._running[task_id] = job
        job.add_done_callback(lambda _: self._running.pop(task_id, None))

    def force(self, task_id: str, task: Task | None = None) -> None:
        """Replace the engines that still run a task, now."""
        for engine in self._owner.engines.values():
            if engine.task is not None and engine.task.id == task_id:
                self._replace(engine, "at the second Stop")

    async def _escalate(self, task: Task) -> None:
        clock = self._owner.loop.time
        begun = clock()
        for engine in self._left(task):
            self._owner.send_control(engine, {"op": "interrupt", "task": task.id})
        await self._wait(task, ABORT_AFTER_S)
        is_told = False
        while self._left(task) and clock() - begun < REPLACE_AFTER_S:
            for engine in self._left(task):
                self._owner.send_control(
                    engine,
                    {"op": "rpc", "id": 0, "name": "abort_if_still", "args": {"task": task.id}},
                )
            await self._wait(task, ABORT_EVERY_S)
            if not is_told and clock() - begun > TELL_AFTER_S:
                is_told = True
                self._tell(task)
        for engine in self._left(task):
            self._replace(engine, f"because it did not stop within {REPLACE_AFTER_S:g} s")

    def _tell(self, task: Task) -> None:
        left = self._left(task)
        for engine in left:
            engine.state = EngineState.STOPPING
        if left:
            ranks = [engine.rank for engine in left]
            self._owner.notify({"op": "stopping", "task": task.id, "ranks": ranks})

    def _replace(self, engine: EngineRecord, when: str) -> None:
        name = engine.task.name if engine.task else "a task"
        self._owner.replace(
            engine, f"The engine of rank {engine.rank} was replaced {when}; it ran {name!r}."
        )

    def _left(self, task: Task) -> list[EngineRecord]:
        return [engine for engine in self._owner.engines.values() if engine.task is task]

    async def _wait(self, task: Task, seconds: float) -> None:
        """Wait until no rank runs the task any more, at most for some seconds."""
        waits = [asyncio.ensure_future(engine.free.wait()) for engine in self._left(task)]
        if waits:
            _, pending = await asyncio.wait(waits, timeout=seconds)
            for wait in pending:
                wait.cancel()
