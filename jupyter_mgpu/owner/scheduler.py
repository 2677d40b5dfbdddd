"""Hands out tasks to idle engines, and follows each task to its end."""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from jupyter_mgpu.engines import EngineState
from jupyter_mgpu.owner.engine_record import Death, EngineRecord
from jupyter_mgpu.owner.journal import Journal
from jupyter_mgpu.owner.queue import Task, TaskQueue
from jupyter_mgpu.shared_memory import is_shared
from jupyter_mgpu.wire import Frame, Header

FREE_AFTER_S = 0.25
"""One failing rank frees the others, after a moment in which they may fail in the same way."""
FREE_UNBEGUN_AFTER_S = 2.0
"""The moment counts from the last rank's begin, but a rank that does not begin is freed as well."""

Send = Callable[[EngineRecord, Header, list[Frame]], None]
Notify = Callable[..., None]


class Scheduler:
    """The tasks of one pool. All methods run in the owner's event loop.

    Args:
        engines: The pool's engines by rank; the dict may grow and shrink.
        journal: Where tasks are recorded.
        send: Sends a task to an engine.
        notify: Tells the client of an event.
        free: Ends what a task's ranks still run, in the background.
        call_later: Calls a function after some seconds.
    """

    def __init__(
        self,
        engines: dict[int, EngineRecord],
        journal: Journal,
        *,
        send: Send,
        notify: Notify,
        free: Callable[[Task], None],
        call_later: Callable[..., Any],
    ) -> None:
        self.tasks: dict[str, Task] = {}  # queued and running ones
        self.generation = 0
        self.used_s = time.monotonic()
        self._engines = engines
        self._journal = journal
        self._send = send
        self._notify = notify
        self._free = free
        self._call_later = call_later
        self._queue = TaskQueue()
        self._is_dirty = False  # a rank's process group broke since the last gang

    def submit(self, task: Task) -> None:
        """Queue a task, or end it at once if no engine can ever run it."""
        if task.id in self.tasks or task.info.get("ended"):
            return  # it was submitted before
        problem = self._problem(task)
        if problem is not None:
            self.end(task, "failed", reason="no engines", message=problem)
            return
        self.tasks[task.id] = task
        self._queue.add(task)
        self.schedule()
        if task.is_gang and task.state == "queued":
            self._tell_waiting(task)

    def _problem(self, task: Task) -> str | None:
        missing = [rank for rank in task.ranks if rank not in self._engines]
        if missing and (task.is_gang or len(missing) == len(task.ranks)):
            return f"Rank {missing[0]} was asked for; the pool has ranks {list(self._engines)}."
        wanted = [rank for rank in task.ranks if rank in self._engines] or tuple(self._engines)
        gone = [rank for rank in wanted if self._engines[rank].is_given_up]
        if len(gone) == len(wanted) or (task.is_gang and gone):
            return (
                f"There are no engines for it: that of rank {gone[0]} could not be started again. "
                f"{self._engines[gone[0]].lost} `%parpool restart` tries once more."
            )
        return None

    def schedule(self) -> None:
        """Start what can start now."""
        idle = [rank for rank, e in self._engines.items() if e.state is EngineState.IDLE]
        for task, ranks in self._queue.assign(idle) if idle else ():
            self._dispatch(task, ranks)

    def _dispatch(self, task: Task, ranks: tuple[int, ...]) -> None:
        if task.is_gang and self._is_dirty:
            self.generation += 1  # on all ranks together, before any new default group
            self._is_dirty = False
        task.state = "running"
        task.started_s = time.monotonic()
        task.running_on = set(ranks)
        task.info["rank"] = ranks[0]
        task.info["started"] = datetime.now(UTC).isoformat(timespec="milliseconds")
        header = {
            **task.header,
            "op": "run",
            "task": task.id,
            "gang": list(ranks) if task.is_gang else None,
            "generation": self.generation,
            "world_size": len(self._engines),
        }
        for rank in ranks:
            engine = self._engines[rank]
            engine.take(task)
            frames = task.frames[rank] if isinstance(task.frames, dict) else task.frames
            self._send(engine, header, frames)
            self._notify({"op": "started", "task": task.id, "rank": rank})
        if not task.retries:
            task.frames = _lasting(task.frames)
        task.header = header
        if task.timeout_s is not None:
            task.info["timer"] = self._call_later(task.timeout_s, self._on_timeout, task)

    def resend(self, task_id: str, rank: int, frames: list[Frame]) -> None:
        """Send a running cell again to a rank that lacked some of the names' parts."""
        engine = self._engines.get(rank)
        if engine is not None and engine.task is not None and engine.task.id == task_id:
            self._send(engine, engine.task.header, frames)

    def tell_waiting(self) -> None:
        """Tell each gang that waits what it waits for."""
        for task in list(self._queue):
            if task.is_gang:
                self._tell_waiting(task)

    def _tell_waiting(self, gang: Task) -> None:
        busy: list[list[Any]] = []
        for rank in gang.ranks:
            engine = self._engines[rank]
            if engine.task is not None:
                seconds = time.monotonic() - engine.task.started_s
                busy.append([rank, engine.task.name, seconds])
            elif engine.state is not EngineState.IDLE:
                busy.append([rank, f"its engine is {engine.state}", 0.0])
        idle = [rank for rank, e in self._engines.items() if e.state is EngineState.IDLE]
        self._notify({"op": "waiting", "task": gang.id, "busy": busy, "idle": idle})

    def cancel(self, task_id: str) -> None:
        """Take a task out of the queue, or end it while it runs."""
        task = self.tasks.get(task_id)
        if task is None:
            return
        was_running = task.state == "running"
        self.end(task, "cancelled", reason="cancelled")
        if was_running:
            self._free(task)
        else:
            self._queue.remove(task)
            self.schedule()

    def withdraw(self, task_ids: Iterable[str]) -> set[str]:
        """Cancel those tasks that still wait; return their ids."""
        found = map(self.tasks.get, task_ids)
        waiting = {task.id for task in found if task is not None and task.state == "queued"}
        for task_id in waiting:
            self.cancel(task_id)
        return waiting

    def cancel_all(self, reason: str) -> None:
        """End every task, because the pool ends."""
        for task in list(self.tasks.values()):
            self.end(task, "cancelled", reason=reason)

    def _on_timeout(self, task: Task) -> None:
        if self.tasks.get(task.id) is task and task.state == "running":
            self.end(
                task,
                "failed",
                reason="timeout",
                message=f"The task {task.name!r} ran longer than its time-out of "
                f"{task.timeout_s:g} s and was ended.",
            )
            self._free(task)

    def end(self, task: Task, state: str, **details: Any) -> None:
        """Make a task's end known; its ranks may be busy for a moment longer."""
        if task.info.get("ended"):
            return
        task.info["ended"] = True
        task.state = state
        task.frames = []  # a timer may hold the task for long
        _stop_timer(task)
        self.tasks.pop(task.id, None)
        self.used_s = time.monotonic()
        header = {"op": "ended", "task": task.id, "state": state, **details}
        self._notify(header)
        trouble = self._journal.ended(task, header)
        if trouble is not None:
            self._notify({"op": "notice", "message": trouble})

    def on_event(self, engine: EngineRecord, header: Header, frames: list[Frame]) -> None:
        """Take what an engine tells of a task."""
        header["rank"] = engine.rank
        if header["op"] == "done":
            self._on_done(engine, header, frames)
            return
        if header["op"] == "importing":
            if engine.task is not None and engine.task.id == header["task"]:
                engine.is_importing = header["is_under_way"]
            return
        if header["op"] == "begun":
            self._on_begun(engine, header)
            return
        task = self.tasks.get(header.get("task", ""))
        if task is not None:
            self._journal.observe(task, header)
        self._notify(header, frames)

    def _on_begun(self, engine: EngineRecord, header: Header) -> None:
        task = engine.task
        if task is not None and task.id == header["task"]:
            task.begun.add(engine.rank)
            self._free_others(task)

    def _on_done(self, engine: EngineRecord, header: Header, frames: list[Frame]) -> None:
        task = engine.task
        if task is None or task.id != header["task"]:
            return
        engine.release()
        self._judge_group(task, header.get("group", {}))
        self._rank_done(task, header, frames)

    def _judge_group(self, task: Task, health: dict[str, Any]) -> None:
        """Note whether the ranks may go on with the process group that they have.

        After a cell that failed somewhere, ranks that have seen different numbers of operations
        would not meet again; after a good one the numbers may differ, as of subgroups.
        """
        sequences = task.info.setdefault("sequences", set())
        if health.get("used"):
            sequences.add(health.get("sequence"))
        has_parted = "first" in task.info and len(sequences) > 1
        self._is_dirty |= not health.get("usable", True) or has_parted

    def _rank_done(self, task: Task, header: Header, frames: list[Frame]) -> None:
        task.running_on.discard(header["rank"])
        if _tells_result(task, header) and not task.info.get("ended"):
            self._journal.result(task, header, frames)
        self._notify(header, frames)
        if header["status"] != "ok" and "first" not in task.info:
            task.info["first"] = header["rank"]
            self._is_dirty |= len(task.info.get("sequences", ())) > 1
            self._free_others(task)
            if task.running_on:
                self._call_later(FREE_UNBEGUN_AFTER_S, self._free, task)
        self.schedule()
        if not task.running_on:
            first = task.info.get("first")
            self.end(task, "finished" if first is None else "failed", first=first)

    def _free_others(self, task: Task) -> None:
        """Free the ranks that still run a cell which has failed on one, once all have begun."""
        if "first" in task.info and task.running_on and task.running_on <= task.begun:
            self._call_later(FREE_AFTER_S, self._free, task)

    def on_death(self, engine: EngineRecord, death: Death) -> None:
        """Take note that an engine ended: what it ran fails, or is tried again elsewhere."""
        self._is_dirty = True
        task = engine.task
        engine.task = None
        engine.free.set()
        if task is None:
            return
        if task.retries > 0 and self.tasks.get(task.id) is task and not task.is_gang:
            task.retries -= 1
            task.state = "queued"
            task.running_on.clear()
            _stop_timer(task)
            self._notify({"op": "retry", "task": task.id, "rank": engine.rank})
            self._queue.add(task)
            self.schedule()
            return
        reply = {"op": "done", "task": task.id, "rank": engine.rank, "status": "died"}
        self._rank_done(task, {**reply, **asdict(death)}, [])

    def on_new_world(self) -> None:
        """Take note that the pool grew or shrank: WORLD_SIZE and generation change together."""
        self._is_dirty = True
        self.fail_hopeless()  # what waits for a rank that is no longer there
        self.schedule()

    def fail_hopeless(self) -> None:
        """End the waiting tasks that no engine can ever run."""
        for task in list(self._queue):
            problem = self._problem(task)
            if problem is not None:
                self.end(task, "failed", reason="no engines", message=problem)
                self._queue.remove(task)


def _tells_result(task: Task, header: Header) -> bool:
    """Tell whether a rank's reply is the task's: of a gang that of one rank, or the first error."""
    if "first" in task.info:
        return False
    return (
        header["status"] != "ok"
        or not task.is_gang
        or header["rank"] == task.header.get("result_rank")
    )


def _stop_timer(task: Task) -> None:
    """Let the timer of a try that is over neither end the next one nor hold the task."""
    timer = task.info.pop("timer", None)
    if timer is not None:
        timer.cancel()


def _lasting(frames: list[Frame] | dict[int, list[Frame]]) -> list[Frame]:
    """Return what lives as long as a task that runs: nothing of a cell, of a call its blocks.

    Its engine has the arguments until the call ends, so that a block costs nothing, and what is
    submitted meanwhile can use it.
    """
    return [] if isinstance(frames, dict) else [frame for frame in frames if is_shared(frame)]
