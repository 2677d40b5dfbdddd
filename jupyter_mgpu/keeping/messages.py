"""What a kernel and a keeper tell each other, as headers and frames."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from jupyter_mgpu import errors
from jupyter_mgpu.engines import EngineState, EngineStatus, MovedBytes, PoolStatus
from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.wire import Frame, Header

_PLAIN = ("id", "name", "header", "is_gang", "priority", "timeout_s", "retries", "since_s", "info")


def describe_task(task: Task) -> tuple[Header, list[Frame]]:
    """Turn a task that was not queued yet into a message; what several ranks get goes once."""
    lists: dict[int, list[Frame]] = {}
    by_rank: dict[int, int] | None = None
    if isinstance(task.frames, dict):
        lists = {id(frames): frames for frames in task.frames.values()}
        places = {key: place for place, key in enumerate(lists)}
        by_rank = {rank: places[id(frames)] for rank, frames in task.frames.items()}
    else:
        lists[0] = task.frames
    described = {name: getattr(task, name) for name in _PLAIN}
    described |= {"ranks": list(task.ranks), "lists": [len(part) for part in lists.values()]}
    described["by_rank"] = by_rank
    return described, [frame for part in lists.values() for frame in part]


def make_task(described: Mapping[str, Any], frames: list[Frame]) -> Task:
    """Return the task that was described."""
    left = iter(frames)
    lists = [[next(left) for _ in range(size)] for size in described["lists"]]
    by_rank = described["by_rank"]
    return Task(
        ranks=tuple(described["ranks"]),
        frames=lists[0]
        if by_rank is None
        else {int(rank): lists[place] for rank, place in by_rank.items()},
        **{name: described[name] for name in _PLAIN},
    )


def describe_error(error: BaseException) -> dict[str, Any]:
    """Describe an error of ours; any other becomes one."""
    if not isinstance(error, MgpuError):
        return {"type": "MgpuError", "text": f"{type(error).__name__}: {error}", "facts": {}}
    return {"type": type(error).__name__, "text": str(error), "facts": vars(error)}


def make_error(described: Mapping[str, Any]) -> MgpuError:
    """Return the error that was described, with its type and words."""
    found = getattr(errors, described["type"], MgpuError)
    error: MgpuError = found.__new__(found, described["text"])
    error.args = (described["text"],)
    for name, value in described["facts"].items():
        setattr(error, name, tuple(value) if isinstance(value, list) else value)
    return error


def describe_status(status: PoolStatus) -> dict[str, Any]:
    """Describe a pool's status."""
    return asdict(status)


def make_status(described: Mapping[str, Any]) -> PoolStatus:
    """Return the status that was described."""
    engines = tuple(
        EngineStatus(
            **{
                **engine,
                "state": EngineState(engine["state"]),
                "moved": MovedBytes(**engine["moved"]),
            }
        )
        for engine in described["engines"]
    )
    return PoolStatus(**{**described, "engines": engines})
