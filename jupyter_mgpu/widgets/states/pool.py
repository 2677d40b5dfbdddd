"""The state of a pool's view: its engines, what they do, how hard their devices work."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jupyter_mgpu.engines import EngineState, EngineStatus, PoolStatus
from jupyter_mgpu.widgets.states import State, parts

CONTROLS = ("interrupt", "restart", "stop")


@dataclass(frozen=True, slots=True)
class EngineReadings:
    """What was measured of one engine's device: its GPU, or its process where it has none.

    Attributes:
        what: Whose utilization and memory it is.
        utilization: A reading, in percent.
        memory: In bytes.
        utilization_history: The last minutes, in percent.
    """

    what: Literal["gpu", "cpu"] = "cpu"
    utilization: dict[str, Any] = field(default_factory=lambda: parts.reading(None))
    memory: dict[str, Any] = field(default_factory=lambda: parts.memory(None, None))
    utilization_history: dict[str, Any] = field(default_factory=lambda: parts.series(1.0, ()))


def pool_state(
    status: PoolStatus,
    readings: Mapping[int, EngineReadings],
    *,
    uuids: Mapping[int, str] | None = None,
    task_ids: Mapping[int, str] | None = None,
    ended: str | None = None,
    place: parts.Place | None = None,
) -> State:
    """Describe a pool.

    Args:
        status: What it is and does now.
        readings: By rank.
        uuids: Of the ranks' GPUs.
        task_ids: Of what the ranks work on.
        ended: Why the pool has ended, if it has.
        place: How a Jupyter server finds it.
    """
    notes = "; ".join(status.notes) or None
    notice = notes if ended is None else f"The pool has ended: {ended}."
    return {
        **parts.frame("pool", final=ended is not None, notice=notice),
        "name": status.name,
        "place": place,
        "state": "stopped" if ended is not None else _state_of(status.engines),
        "started": parts.seconds_of(status.started),
        "notebook": status.notebook,
        "queued": status.queued,
        "running": status.running,
        "controls": [] if ended is not None else list(CONTROLS),
        "engines": [
            _engine(
                engine,
                readings.get(engine.rank, EngineReadings()),
                (uuids or {}).get(engine.rank),
                (task_ids or {}).get(engine.rank),
                has_ended=ended is not None,
            )
            for engine in status.engines
        ],
    }


def _state_of(engines: tuple[EngineStatus, ...]) -> str:
    states = {engine.state for engine in engines}
    if states <= {EngineState.STARTING}:
        return "starting"
    if states & {EngineState.DEAD, EngineState.STARTING}:
        return "degraded"
    return "busy" if states & {EngineState.BUSY, EngineState.STOPPING} else "ready"


def _engine(
    engine: EngineStatus,
    readings: EngineReadings,
    uuid: str | None,
    task_id: str | None,
    *,
    has_ended: bool,
) -> dict[str, Any]:
    return {
        "rank": engine.rank,
        "device": engine.place,
        "uuid": uuid,
        "proven": engine.proven,
        "state": "ended" if has_ended else str(engine.state),
        "task": None if has_ended else engine.task,
        "task_id": None if has_ended else task_id,
        "pid": engine.pid,
        "what": readings.what,
        "utilization": readings.utilization,
        "memory": readings.memory,
        "utilization_history": readings.utilization_history,
    }
