"""What each command shows: a value for programs, a text for people, and an exit code."""

from dataclasses import asdict, dataclass
from typing import Any

from jupyter_mgpu import control, kept_tasks
from jupyter_mgpu.control import Look
from jupyter_mgpu.diagnosis import doctor as check_everything
from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.monitor import take_snapshot
from jupyter_mgpu.output.table import format_bytes, text_table
from jupyter_mgpu.owner import journal, told_loops
from jupyter_mgpu.snapshots import table_with, wait_for_hosts

STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a command."""

    value: Any
    text: str
    exit_code: int = 0


def gpus() -> Outcome:
    """Show the GPUs of this machine, and of the other hosts of this user's pools."""
    hosts = wait_for_hosts(_told_of_hosts)
    return Outcome(take_snapshot(hosts=lambda: hosts).to_dict(), repr(table_with(hosts)))


def _told_of_hosts() -> list[dict[str, Any]]:
    looks = control.look_at(control.find_pools())
    return [host for look in looks if look.answer for host in look.answer.get("hosts", ())]


def pools() -> Outcome:
    """Show every pool of this user."""
    looks = control.look_at(control.find_pools())
    rows = [_pool_row(look) for look in looks]
    return Outcome([_pool_value(look) for look in looks], _table(rows, "No pools."))


def _pool_row(look: Look) -> dict[str, Any]:
    status = look.answer["status"] if look.answer else {}
    return {
        "pool": look.pool.name,
        "state": look.state if look.words == look.state else f"{look.state} ({look.words})",
        "running": status.get("running"),
        "queued": status.get("queued"),
        "devices": ", ".join(engine.device for engine in look.pool.engines),
        "kernel": look.pool.attached_pid if look.pool.is_kept else look.pool.kernel_pid,
        "notebook": look.pool.notebook,
        "id": look.pool.id,
    }


def _pool_value(look: Look) -> dict[str, Any]:
    value = {**asdict(look.pool), "state": look.state, "state_words": look.words}
    return {**value, "status": look.answer["status"] if look.answer else None}


def tasks(name: str | None) -> Outcome:
    """Show the tasks of this user's pools, or what one of them has printed."""
    looks = control.look_at(control.find_pools())
    if name is not None:
        return _diary(looks, name)
    found = [(look, task) for look in looks if look.answer for task in _tasks(look.answer)]
    values = [{**task, "pool": look.pool.name, "pool_id": look.pool.id} for look, task in found]
    values += kept_tasks.waiting(looks)
    rows = [_task_row(value) for value in values]
    silent = [look.pool.name for look in looks if look.answer is None]
    note = f"\nNot known: the tasks of {', '.join(silent)}, which does not answer."
    return Outcome(values, _table(rows, "No tasks.") + (note if silent else ""))


def _tasks(answer: control.Answer) -> list[dict[str, Any]]:
    return [*answer["tasks"], *answer["ended"]]


def _task_row(task: dict[str, Any]) -> dict[str, Any]:
    progress = task["progress"]
    return {
        "task": task["name"],
        "pool": task["pool"],
        "kind": task["kind"],
        "state": task["state"],
        "rank": task["rank"],
        "progress": None if progress is None else f"{progress:.0%}",
        "last report": task["last_metrics"],
        "result": format_bytes(size) if (size := task.get("result_bytes")) else None,
        "error": task.get("error"),
    }


def _diary(looks: list[Look], name: str) -> Outcome:
    """Show what a task has printed: of one that runs, else of the newest that is on disk."""
    for look in looks:
        for task in look.answer["tasks"] if look.answer else ():
            if task["name"] == name and task["kind"] == "task":
                return _printed(task, control.read_diary(look.pool, task["id"]))
    newest: list[dict[str, Any]] = []  # a task, or the parts of a loop
    for record, _, _ in journal.read_all():
        if record["name"] == name:
            newest = [record]
        elif kept_tasks.loop_of(record) == name:
            is_same = newest and told_loops.loop_of(newest[0]) == told_loops.loop_of(record)
            newest = [*newest, record] if is_same else [record]
    if not newest:
        raise MgpuError(f"No task {name!r} runs or is on disk. `jupyter mgpu tasks` lists them.")
    if newest[0]["name"] == name:
        return _printed(newest[0], newest[0]["diary"], journal.first_line(newest[0]))
    (loop,) = told_loops.fold(map(journal.told, newest))
    newest.sort(key=lambda part: part["part"]["first"])
    return _printed(loop, "".join(part["diary"] for part in newest), loop["error"])


def _printed(task: dict[str, Any], diary: str, error: str | None = None) -> Outcome:
    facts = {"name": task["name"], "state": task["state"], "diary": diary, "error": error}
    text = diary.rstrip("\n") or "(it has printed nothing)"
    return Outcome(facts, "\n".join(filter(None, (text, error))))


def stop(name: str) -> Outcome:
    """Stop a pool.

    Raises:
        MgpuError: If there is none of that name, or it cannot be ended.
    """
    done = control.stop(control.named(name), wait_s=STOP_S)
    return Outcome(asdict(done), done.words)


def doctor() -> Outcome:
    """Check this machine."""
    report = check_everything()
    return Outcome(
        [asdict(check) for check in report], repr(report), exit_code=1 if report.failed else 0
    )


def _table(rows: list[dict[str, Any]], nothing: str) -> str:
    if not rows:
        return nothing
    used = [key for key in rows[0] if any(row[key] not in (None, {}, "") for row in rows)]
    return text_table([{key: row[key] for key in used} for row in rows])
