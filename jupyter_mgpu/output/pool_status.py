"""A pool's status in words and rows."""

from typing import Any

from jupyter_mgpu.engines import PoolStatus
from jupyter_mgpu.output.table import format_bytes


def status_line(status: PoolStatus) -> str:
    """Say in one line what a pool is and does."""
    idle = "for good" if status.idle_timeout_s is None else f"{status.idle_timeout_s / 60:.0f} min"
    line = (
        f"Pool {status.name!r}: {_engines(status)}; tasks: {_work(status)}; "
        f"kept when unused: {idle}{'; outlives its kernel' if status.is_kept else ''}"
    )
    return "; ".join([line, *status.notes])


def attached_line(status: PoolStatus, num_ended: int) -> str:
    """Say in one line what a kernel has got that was attached to a kept pool."""
    new = [str(engine.rank) for engine in status.engines if engine.starts]
    lost = f" On rank {', '.join(new)} a new engine runs, without earlier names." if new else ""
    return (
        f"Attached to the pool {status.name!r}: {_engines(status)}; tasks: {_work(status)}, "
        f"{num_ended} ended. tasks.load(name) brings a task back, %tasks lists them.{lost}"
        f"{''.join(map(_sentence, status.notes))}"
    )


def _sentence(note: str) -> str:
    return f" {note[0].upper()}{note[1:].removesuffix('.')}."


def _engines(status: PoolStatus) -> str:
    return "1 engine" if len(status.engines) == 1 else f"{len(status.engines)} engines"


def _work(status: PoolStatus) -> str:
    return f"{status.running} running, {status.queued} queued"


def engine_rows(status: PoolStatus) -> list[dict[str, Any]]:
    """Describe each engine in a row; what is not known is None, never 0."""
    return [
        {
            "rank": engine.rank,
            "device": engine.place + (" (verified)" if engine.proven else ""),
            "state": str(engine.state),
            "task": engine.task,
            "memory": f"{engine.rss_bytes / 2**20:,.0f} MiB" if engine.rss_bytes else "n/a",
            "sent": format_bytes(engine.moved.sent),
            "received": format_bytes(engine.moved.received),
            "pid": engine.pid,
        }
        for engine in status.engines
    ]
