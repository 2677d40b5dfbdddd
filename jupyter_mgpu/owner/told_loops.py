"""A loop of a kept pool as one task, for those who look: its parts are tasks of their own."""

from collections.abc import Iterable, Mapping
from typing import Any

_STATES = ("running", "queued", "failed", "cancelled", "finished")
"""A loop is in the first of these that one of its parts is in."""
_OPEN = _STATES[:2]

Told = dict[str, Any]


def loop_of(task: Mapping[str, Any]) -> str | None:
    """Return the key of the loop that a task is a part of, None for any other task."""
    key: str | None = (task.get("part") or {}).get("loop")
    return key


def as_loop(task: Mapping[str, Any]) -> Told:
    """Return what is told of a part as what is known of its loop by it: `size` counts results."""
    part = task["part"]
    size = part["size"] if task["state"] == "finished" else 0
    return {
        **task,
        "id": part["loop"],
        "name": part["name"],
        "rank": None,
        "progress": size / part["total"],
        "part": {**part, "size": size},
    }


def join(one: Mapping[str, Any], other: Mapping[str, Any]) -> Told:
    """Put together what two groups of a loop's parts tell of it."""
    state = min(one["state"], other["state"], key=_STATES.index)
    part = {**one["part"], "size": one["part"]["size"] + other["part"]["size"]}
    begun = [task["started"] for task in (one, other) if task["started"] is not None]
    finished = [task["finished"] for task in (one, other) if state not in _OPEN]
    ended = [at for at in finished if at is not None]
    return {
        **one,
        "state": state,
        "created": min(one["created"], other["created"]),
        "started": min(begun, default=None),
        "finished": max(ended, default=None),
        "progress": part["size"] / part["total"],
        "last_metrics": one["last_metrics"] or other["last_metrics"],
        "result_bytes": (one.get("result_bytes") or 0) + (other.get("result_bytes") or 0),
        "error": one.get("error") or other.get("error"),
        "part": part,
    }


def fold(tasks: Iterable[Mapping[str, Any]]) -> list[Told]:
    """Put one entry in the place of the first part of each loop; other tasks stay."""
    places: dict[str, int] = {}
    folded: list[Told] = []
    for task in tasks:
        key = loop_of(task)
        if key is None:
            folded.append(dict(task))
        elif key in places:
            folded[places[key]] = join(folded[places[key]], as_loop(task))
        else:
            places[key] = len(folded)
            folded.append(as_loop(task))
    return folded
