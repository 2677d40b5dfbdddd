"""What happens to waiting tasks when the pool changes."""

from pathlib import Path
from typing import Any

from jupyter_mgpu.engines import EngineState
from jupyter_mgpu.owner.engine_record import EngineRecord
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
