"""Starts engines by a program that starts ranks: srun inside an allocation, or mpirun."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_mgpu.clusters import ClusterDescription, MpiOptions
from jupyter_mgpu.clusters.commands import python_of
from jupyter_mgpu.errors import PoolStartError
from jupyter_mgpu.on_engine import orders as folded
from jupyter_mgpu.on_engine import scheduled_gpus
from jupyter_mgpu.on_engine.launcher_names import tells_a_rank
from jupyter_mgpu.transport import quiet_log, slurm_queue
from jupyter_mgpu.transport.launch_sets import SetLauncher, launch_environment
from jupyter_mgpu.transport.placement import Order

GPUS_PER_TASK = "SLURM_GPUS_PER_TASK"
"""An allocation's own, which srun would take for ours."""

POLL_S = 0.1
END_S = 3.0
LAST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Starter:
    """A program that starts ranks.

    Attributes:
        program: Its name.
        options: Its options for all sets.
        on_host: Its options for a single rank on a host: `{host}` in them, and `{gpus}`, the
            number of those that the pool has there.
        beside: Its options for ranks that are to be beside others that run.
        rank: The variables, one of which tells a process its rank.
        local_rank: Those that tell its place on its host.
        environment: Variables that it takes its settings from.
        job_id: The allocation of Slurm that it runs in, if it does.
    """

    program: str
    options: tuple[str, ...]
    on_host: tuple[str, ...]
    beside: tuple[str, ...]
    rank: str
    local_rank: str
    environment: Mapping[str, str]
    job_id: str | None = None


def srun(num_gpus: int) -> Starter:
    """Return srun as it starts a step of the allocation that this process is in."""
    gpus = (f"--gpus-per-task={num_gpus}",) if num_gpus else ()
    # Of several steps at once each would be shown the first GPU: it is to choose by itself.
    all_gpus = ("--gres=gpu:{gpus}",) if num_gpus else ()
    # A kernel that is a step itself has taken what the allocation has.
    shared = ("--overlap",) if "SLURM_STEP_ID" in os.environ else ()
    return Starter(
        program="srun",
        options=("--mpi=none", "--kill-on-bad-exit=0", "--wait=0", "--export=ALL", *shared, *gpus),
        on_host=("--mpi=none", "--export=ALL", "--overlap", "--nodelist={host}", *all_gpus),
        beside=("--overlap",),
        rank="SLURM_PROCID",
        local_rank="SLURM_LOCALID",
        environment={},
        job_id=os.environ.get("SLURM_JOB_ID"),
    )


def mpirun(options: MpiOptions, cluster: ClusterDescription) -> Starter:
    """Return mpirun, of Open MPI or another MPI, as it starts ranks that outlive each other."""
    sent = ";".join([folded.VARIABLE, *launch_environment(cluster)])
    return Starter(
        program=options.command,
        options=options.options,
        on_host=(*options.options, "--host", "{host}"),
        beside=(),
        rank="OMPI_COMM_WORLD_RANK|PMIX_RANK|PMI_RANK",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK|MPI_LOCALRANKID",
        environment={
            # Open MPI sends other hosts no variables but its own and these.
            "OMPI_MCA_mca_base_env_list": sent,
            # One rank that dies must not take the others along.
            "OMPI_MCA_orte_enable_recovery": "1",
            "OMPI_MCA_orte_abort_on_non_zero_status": "0",
            # It would bind each rank, with all its threads, to one core.
            "OMPI_MCA_hwloc_base_binding_policy": "none",
        },
    )


class StepLauncher(SetLauncher):
    """Starts the engines of a pool as one set of ranks, and each replacement where the old one was.

    Engines that join the pool get the places that they would have had from its start: they are the
    last ranks of a set that is as large as the pool is then. The others of that set end at once.

    Args:
        size: How many engines the pool is started with.
        cluster: Where they run.
        starter: What starts them.
        timeout_s: How long they may take to begin.
    """

    def __init__(
        self, size: int, cluster: ClusterDescription, starter: Starter, timeout_s: float
    ) -> None:
        self._places: dict[int, tuple[str, str]] = {}
        super().__init__(size)
        self._cluster = cluster
        self._starter = starter
        self._timeout_s = timeout_s
        self._folder: Path | None = None
        self._steps: list[Step] = []
        self._clock = slurm_queue.JobClock(starter.job_id) if starter.job_id else None

    def expect(self, ranks: Iterable[int]) -> None:  # noqa: D102 - as in the base
        ranks = list(ranks)
        self._places = {rank: place for rank, place in self._places.items() if rank < ranks[0]}
        super().expect(ranks)

    async def launch(self, orders: Sequence[Order]) -> "Step":  # noqa: D102 - as in the base
        step = self._start(orders)
        self._steps.append(step)
        try:
            await step.wait(orders, self._timeout_s)
        except BaseException:
            step.end()
            raise
        for order in orders:
            if (hello := order.begun.result()) is not None:
                self._places[order.rank] = (hello["host"], hello["local_rank"])
        return step

    def _start(self, orders: Sequence[Order]) -> "Step":
        from jupyter_mgpu.transport.launchers import PoolStepLauncher  # imports ipyparallel

        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="mgpu-"))
        starter, first = self._starter, orders[0]
        environments = [order.environment for order in orders]
        num_beside = 0
        if first.rank not in self._places:
            num_beside = first.rank
            taken = {"MGPU_LOCAL_RANK": starter.local_rank}
            own = folded.fold(environments, starter.rank, taken, num_beside)
            options = (*starter.options, *(starter.beside if num_beside else ()))
        else:
            host, local_rank = self._places[first.rank]
            own = folded.fold([{**first.environment, "MGPU_LOCAL_RANK": local_rank}])
            there = sum(place[0] == host for place in self._places.values())
            gpus = there * int(first.environment[scheduled_gpus.NUMBER_VARIABLE])
            options = tuple(  # the user's own among them, which may have other braces
                word.replace("{host}", host).replace("{gpus}", str(gpus))
                for word in starter.on_host
            )
        hidden = [name for name in os.environ if tells_a_rank(name) or name == GPUS_PER_TASK]
        launcher = PoolStepLauncher(
            mpi_cmd=["env", *(f"--unset={name}" for name in hidden), starter.program],
            mpi_args=list(options),
            engine_cmd=[python_of(self._cluster)],
            engine_args=list(first.command),
            profile_dir=str(self._folder),
            log=quiet_log.LOG,
            output_file=str(self._folder / f"{first.rank}.{first.number}.log"),
            environment={**launch_environment(self._cluster), **starter.environment, **own},
        )
        try:
            launcher.start(num_beside + len(orders))
        except OSError as error:
            raise PoolStartError(f"{starter.program} cannot be started: {error}.") from error
        return Step(launcher, starter, len(orders), self._clock)

    async def close(self) -> None:
        """End what is left of the steps; their engines have been ended."""
        loop = asyncio.get_running_loop()
        for signum in (None, signal.SIGTERM, signal.SIGKILL):
            deadline_s = loop.time() + END_S
            for step in self._steps:
                step.end(signum)
            while any(step.runs() for step in self._steps) and loop.time() < deadline_s:
                await asyncio.sleep(POLL_S)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class Step:
    """One run of srun or mpirun.

    Args:
        launcher: ipyparallel's handle of it.
        starter: What it is.
        size: How many engines it has started.
        clock: Knows how long the allocation lasts that it runs in, if it does.
    """

    def __init__(
        self, launcher: Any, starter: Starter, size: int, clock: slurm_queue.JobClock | None
    ) -> None:
        self._launcher = launcher
        self._starter = starter
        self._size = size
        self._clock = clock

    def runs(self) -> bool:
        """Tell whether it has not ended."""
        return self._launcher.reap() is None

    def end(self, signum: int | None = signal.SIGTERM) -> None:
        """Send it a signal, if it runs."""
        if signum is not None and self.runs():
            self._launcher.signal(signum)

    def kill(self) -> None:
        """End a step of a single engine; of several, one cannot be told from the others."""
        if self._size == 1:
            self.end()

    async def explain(self, silent: str | None, silent_s: float, /) -> str | None:
        """Say why the allocation has ended, if it has, or what is known of a silent node."""
        job_id = self._starter.job_id
        if job_id is None:
            return None
        job = await slurm_queue.ended_job(job_id)
        if job is None:
            return silent and await slurm_queue.on_silence(job_id, silent, silent_s)
        return f"has ended: Slurm's job {job_id} {job.end}"

    def note(self) -> str | None:
        """Say how long the allocation lasts."""
        return None if self._clock is None else self._clock.note()

    async def wait(self, orders: Sequence[Order], timeout_s: float) -> None:
        """Wait until its engines have begun.

        Raises:
            PoolStartError: If it ends before, or they do not begin in time.
        """
        loop = asyncio.get_running_loop()
        waiting, deadline_s = {order.begun for order in orders}, loop.time() + timeout_s
        while waiting:
            _, waiting = await asyncio.wait(waiting, timeout=POLL_S)
            if waiting and not self.runs():
                raise PoolStartError(
                    f"{self._starter.program} ended with exit code {self._launcher.reap()} before "
                    f"{len(waiting)} of {self._size} engines had begun.{self._last_words()}"
                )
            if waiting and loop.time() > deadline_s:
                raise PoolStartError(
                    f"{len(waiting)} of {self._size} engines did not begin within {timeout_s:g} s "
                    f"of {self._starter.program}. Try `{self._launcher.engine_cmd[0]} -c 'import "
                    f"jupyter_mgpu'` where they are to run.{self._last_words()}"
                )

    def _last_words(self) -> str:
        output = Path(self._launcher.output_file).read_bytes()[-LAST_BYTES:]
        said = output.decode(errors="replace").strip()
        return f" Its last lines:\n{said}" if said else ""
