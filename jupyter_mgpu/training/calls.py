"""A call on all ranks of a pool, as one gang."""

from jupyter_mgpu.output.cell_output import CellOutput
from jupyter_mgpu.output.publisher import Publisher
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.wire import Frame


def prepare_call(
    pool: Pool, name: str, frames: list[Frame], cell: Publisher
) -> tuple[Task, CellOutput]:
    """Make what a `Gang` runs, and where its output goes."""
    task = pool.submission.new_gang(name, pool.ranks, {"kind": "call"}, list(frames), None)
    output = CellOutput(
        pool.ranks,
        cell,
        log_paths={rank: str(pool.owner.engines[rank].log) for rank in pool.ranks},
        labels={rank: pool.device(rank) for rank in pool.ranks},
        send=pool.owner.post,
    )
    return task, output
