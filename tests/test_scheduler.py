"""What happens to waiting tasks when the pool changes."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

from jupyter_mgpu.engines import EngineState
from jupyter_mgpu.owner.engine_record import Death, EngineRecord
from jupyter_mgpu.owner.journal import Journal
from jupyter_mgpu.owner.plans import EnginePlan
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.owner.scheduler import Scheduler


def test_a_cell_that_waits_for_a_rank_that_is_gone_is_told_so(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    engines = {
        rank: EngineRecord(EnginePlan(rank, "CPU", "cpu", {}), tmp_path / "log") for rank in (0, 1)
    }
    scheduler = Scheduler(
        engines,
        Journal("pool", lambda *_: None),
        send=lambda *_: None,
        notify=lambda header, _=None: events.append(header),
        free=lambda _: None,
        call_later=lambda *_: None,
    )
    engines[0].state = engines[1].state = EngineState.BUSY
    scheduler.submit(Task("g1", "cell", {}, {0: [], 1: []}, ranks=(0, 1), is_gang=True))
    del engines[1]

    scheduler.on_new_world()

    scheduler.tell_waiting()
    assert events[-1]["op"] == "ended"
    assert "Rank 1 was asked for; the pool has ranks [0]" in events[-1]["message"]
    assert scheduler.tasks == {}


def test_a_time_out_counts_from_the_start_of_each_try(tmp_path: Path) -> None:
    timers: list[Mock] = []

    def call_later(*_: Any) -> Mock:
        timers.append(Mock())
        return timers[-1]

    engine = EngineRecord(EnginePlan(0, "CPU", "cpu", {}), tmp_path / "log")
    scheduler = Scheduler(
        {0: engine},
        Journal("pool", lambda *_: None),
        send=lambda *_: None,
        notify=lambda *_: None,
        free=lambda _: None,
        call_later=call_later,
    )
    task = Task("t1", "task", {}, [], timeout_s=60, retries=1)
    engine.state = EngineState.IDLE
    scheduler.submit(task)
    engine.state = EngineState.DEAD
    scheduler.on_death(engine, Death("it died", -9, is_replaced=False))
    engine.state = EngineState.IDLE
    scheduler.schedule()
    first, second = timers
    assert first.cancel.called
    assert not second.cancel.called

    scheduler.cancel("t1")

    assert second.cancel.called  # else it would hold the task
