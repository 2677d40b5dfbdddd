"""What ranks and tasks have written, also where the kernel does not answer."""

from jupyter_mgpu.control.found import FoundPool
from jupyter_mgpu.control.looking import SILENT_S
from jupyter_mgpu.errors import MgpuError, OwnerError
from jupyter_mgpu.owner import endpoint, journal

MOST_BYTES = 2**20


def read_log(pool: FoundPool, rank: int, size: int = 65536) -> str:
    """Read the end of a rank's log file, at most so many bytes.

    Raises:
        MgpuError: If there is no such rank, or no log any more.
    """
    path = pool.folder / f"rank{rank}.log"
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(0, end - min(size, MOST_BYTES)))
            return file.read(MOST_BYTES).decode(errors="replace")
    except OSError:
        listed = ", ".join(str(engine.rank) for engine in pool.engines) or "none"
        raise MgpuError(
            f"There is no log of rank {rank} of the pool {pool.name!r}. Its ranks are: {listed}."
        ) from None


def read_diary(pool: FoundPool, task: str, size: int = 65536) -> str:
    """Read the end of what a task has printed, at most so many characters.

    Raises:
        MgpuError: If the task is not known, or its owner is silent.
    """
    try:
        return str(endpoint.ask(pool.socket, "diary", timeout=SILENT_S, task=task, size=size))
    except OwnerError:
        # It has ended: what is on disk needs nobody's answer.
        for record, path, _ in journal.read_all():
            is_of_kernel = f"-{pool.kernel_pid}-" in path.name
            if is_of_kernel and (record["pool"], record["id"]) == (pool.name, task):
                return str(record["diary"])[-size:]
        raise
