"""Pools, engines and tasks as flat rows of plain JSON values."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jupyter_mgpu.control import Answer, FoundEngine, FoundPool, plain, state_of
from jupyter_mgpu.server.document import Row
from jupyter_mgpu.server.gpu_rows import on_host
from jupyter_mgpu.server.kernels import KernelFacts

_GPU = re.compile(r"GPU (\d+) \([^)]*\)")
_DEFAULT_NAME = "pool"
_MOST_METRICS = 50
_GROUP, _PRIORITY, _MOST_PRIORITY = 4 * 10**13, 10**10, 1000
"""Apart by more than the milliseconds since 1970, and exact as a browser's number."""


def pool_row(
    pool: FoundPool, answer: Answer | None, silent_s: float | None, kernel: KernelFacts
) -> dict[str, Any]:
    """Describe a pool.

    Args:
        pool: What its record tells.
        answer: What its owner has answered last, None before the first time.
        silent_s: How long the owner has been silent, None while it answers.
        kernel: What the server knows of its kernel.
    """
    status = answer["status"] if answer else {}
    engines: Sequence[Mapping[str, Any]] = status.get("engines", ())
    state, words = state_of(pool, answer, is_silent=silent_s is not None)
    return {
        "name": pool.name,
        "state": state,
        "state_words": words,
        "kernel_id": pool.kernel_id,
        "kernel_pid": pool.kernel_pid,
        "kernel_state": kernel.state,
        "here": kernel.here,
        "notebook": pool.notebook,
        "notebook_path": kernel.path,
        "started": _epoch_s(pool.started),
        "num_engines": len(engines) or len(pool.engines),
        "running": status.get("running"),
        "queued": status.get("queued"),
        "hidden_tasks": answer["hidden"] if answer else 0,
        "idle_timeout_s": status.get("idle_timeout_s"),
        "generation": status.get("generation"),
        "silent_s": None if silent_s is None else round(silent_s),
        "code": _code(pool),
    }


def _code(pool: FoundPool) -> str:
    """Write the line that starts such a pool."""
    gpus = [_GPU.fullmatch(engine.device) for engine in pool.engines]
    numbers = [found[1] for found in gpus if found]
    parts = ["%parpool", str(max(1, len(pool.engines)))]
    if numbers and len(set(numbers)) == len(pool.engines):
        parts += ["--gpus", ",".join(numbers)]
    if pool.name != _DEFAULT_NAME:
        parts += ["--name", pool.name]
    if pool.is_kept:
        parts.append("--keep")
    return " ".join(parts)


def engine_rows(
    pool: FoundPool, answer: Answer | None, *, is_live: bool, gpu_ids: Mapping[str, str]
) -> dict[str, Row]:
    """Describe a pool's engines.

    Args:
        pool: What its record tells.
        answer: What its owner has answered last.
        is_live: Whether the owner still answers: otherwise the record tells more than it.
        gpu_ids: The ids of GPU rows by their label, such as `GPU 3` or `GPU 3 on hostb`.
    """
    if not is_live or not answer:
        rows = [_bare_engine(engine) for engine in pool.engines]
    else:
        ids = _running_ids(answer["tasks"])
        rows = [_engine(engine, ids) for engine in answer["status"]["engines"]]
    return {
        f"{pool.id}/{row['rank']}": {
            **row,
            "pool": pool.id,
            "device": on_host(row["device"], row["host"]),
            "gpus": _gpus_of(row["device"], row["host"], gpu_ids),
        }
        for row in rows
    }


def _engine(engine: Mapping[str, Any], ids: Mapping[str, str]) -> dict[str, Any]:
    return {
        "rank": engine["rank"],
        "device": engine["device"],
        "host": engine.get("host"),
        "pid": engine["pid"],
        "state": engine["state"],
        "task": engine["task"],
        "task_id": ids.get(engine["task"] or ""),
        "proven": engine["proven"],
        "rss": engine["rss_bytes"],
        "starts": engine["starts"],
    }


def _bare_engine(engine: FoundEngine) -> dict[str, Any]:
    unknown = dict.fromkeys(("host", "task", "task_id", "proven", "rss", "starts"))
    known = {"rank": engine.rank, "device": engine.device, "pid": engine.pid, "state": "unknown"}
    return {**known, **unknown}


def _running_ids(tasks: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the ids of running tasks by name, where a name is of one of them only."""
    running = [task for task in tasks if task["state"] == "running"]
    names = [task["name"] for task in running]
    return {task["name"]: task["id"] for task in running if names.count(task["name"]) == 1}


def _gpus_of(device: str, host: str | None, gpu_ids: Mapping[str, str]) -> list[str] | None:
    labels = [on_host(part.partition(" (")[0], host) for part in device.split("), ")]
    found = [gpu_ids[label] for label in labels if label in gpu_ids]
    return found or None


def task_rows(pool: FoundPool, answer: Answer | None) -> dict[str, Row]:
    """Describe a pool's tasks: running, queued, and the last that ended, newest first."""
    if not answer:
        return {}
    tasks = [*answer["tasks"], *answer["ended"]]
    return {f"{pool.id}/{task['id']}": _task(pool, task) for task in tasks}


def _task(pool: FoundPool, task: Mapping[str, Any]) -> dict[str, Any]:
    metrics = dict(task["last_metrics"])
    step = metrics.pop("step", None)
    return {
        "pool": pool.id,
        "id": task["id"],
        "name": task["name"],
        "kind": task["kind"],
        "state": task["state"],
        "rank": task["rank"],
        "created": _epoch_s(task["created"]),
        "started": _epoch_s(task["started"]),
        "finished": _epoch_s(task.get("finished")),
        "progress": plain(task["progress"]),
        "step": plain(step),
        "metrics": plain({name: metrics[name] for name in list(metrics)[:_MOST_METRICS]}),
        "error": task.get("error"),
        "order": _order(task),
    }


def _order(task: Mapping[str, Any]) -> int:
    """Return a number to sort a task by, which does not change when others come and go."""
    created, started, ended = (
        round(1000 * (_epoch_s(task.get(name)) or 0)) for name in ("created", "started", "finished")
    )
    if task["state"] == "running":
        return started
    if task["state"] == "queued":
        priority = max(-_MOST_PRIORITY, min(_MOST_PRIORITY, int(task.get("priority", 0))))
        return _GROUP + created - priority * _PRIORITY
    return 2 * _GROUP - ended


def _epoch_s(text: str | None) -> float | None:
    """Turn ISO 8601 text into seconds since the epoch."""
    try:
        return None if text is None else datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
