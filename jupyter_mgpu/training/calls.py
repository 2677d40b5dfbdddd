"""A call on all ranks of a pool, as one gang."""

from typing import Any

from jupyter_mgpu.gangs import output_of
from jupyter_mgpu.output.cell_output import CellOutput
from jupyter_mgpu.output.publisher import Publisher
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.wire import Frame


def prepare_call(
    pool: Pool, name: str, frames: list[Frame], cell: Publisher, **facts: Any
) -> tuple[Task, CellOutput]:
    """Make what a `Gang` runs, and where its output goes; `facts` are for the pool's owner."""
    header = {"kind": "call", **facts}
    task = pool.submission.new_gang(name, pool.ranks, header, list(frames), None)
    return task, output_of(pool, pool.ranks, cell)
