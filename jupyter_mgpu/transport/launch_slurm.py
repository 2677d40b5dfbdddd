"""Starts engines as jobs of Slurm, through ipyparallel's launcher.

owner -- sbatch --> job: srun starts one guard per task --> engine      rank = SLURM_PROCID
  |-- a pipe --> sh: when the owner is gone, however, it cancels what is in the queue
"""

import asyncio
import getpass
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

from jupyter_mgpu.clusters import ClusterDescription, SlurmOptions
from jupyter_mgpu.clusters.commands import python_of, slurm_words
from jupyter_mgpu.daemon_thread import call_in_thread
from jupyter_mgpu.errors import HostUnreachableError, PoolStartError
from jupyter_mgpu.on_engine import orders as folded
from jupyter_mgpu.transport import quiet_log
from jupyter_mgpu.transport.launch_sets import SetLauncher, launch_environment
from jupyter_mgpu.transport.placement import Order
from jupyter_mgpu.transport.slurm_job import SlurmJob

TEMPLATE = "#!/bin/sh\nexec srun {program_and_args}\n"
RANK = "SLURM_PROCID"
TAKEN = {"MGPU_LOCAL_RANK": "SLURM_LOCALID"}
SRUN_ENVIRONMENT = {
    # A rank that dies must not take the others along.
    "SLURM_KILL_BAD_EXIT": "0",
    "SLURM_WAIT": "0",
    # Engines need the environment that their job was given, and no MPI.
    "SLURM_EXPORT_ENV": "ALL",
    "SLURM_MPI_TYPE": "none",
}
CLOSE_S = 10.0
_NO_CONTROLLER = "Unable to contact slurm controller"

_CANCELLER = 'cat >/dev/null; scancel --quiet --name="$1" --user="$2"; rm -f "$3/$1"-*.log'


class SlurmLauncher(SetLauncher):
    """Submits one job for the engines of a pool, and one for each that joins it or is replaced.

    Args:
        size: How many engines the pool is started with.
        cluster: What the jobs ask for.
        num_gpus: How many GPUs each engine gets.
        timeout_s: How long engines may take to begin once their job runs.
        say: Tells the user what a job waits for.

    Raises:
        PoolStartError: If there can be no folder for what the jobs print.
    """

    def __init__(
        self,
        size: int,
        cluster: ClusterDescription,
        num_gpus: int,
        timeout_s: float,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(size)
        self._cluster = cluster
        self._options = cluster.options if isinstance(cluster.options, SlurmOptions) else None
        self._num_gpus = num_gpus
        self._timeout_s = timeout_s
        self._say = say
        self._logs = _log_folder()
        self._name = f"mgpu-{secrets.token_hex(4)}"
        self._canceller: subprocess.Popen[bytes] | None = None
        self._submitting: set[Future[str]] = set()
        self._jobs: list[SlurmJob] = []

    async def launch(self, orders: Sequence[Order]) -> SlurmJob:  # noqa: D102 - as in the base
        for over in filter(None, (job.over for job in self._jobs)):
            # Who has cancelled it, or has let it run out, wants no further jobs of ours.
            raise PoolStartError(
                f"No further job is submitted, since {over}. Add --restart to %parpool for a new "
                "pool."
            )
        if self._canceller is None:
            self._canceller = _start_canceller(self._name, self._logs)
        job = await self._submit(orders)
        self._jobs.append(job)
        try:
            await job.wait(orders, self._timeout_s, self._say)
        except BaseException:
            job.cancel()
            raise
        return job

    async def _submit(self, orders: Sequence[Order]) -> SlurmJob:
        submitting = call_in_thread(lambda: self._run_sbatch(orders), "mgpu-sbatch")
        self._submitting.add(submitting)
        submitting.add_done_callback(self._submitting.discard)
        try:
            job_id = await asyncio.wrap_future(submitting)
        except asyncio.CancelledError:  # a Stop: what comes into the queue now is not wanted
            submitting.add_done_callback(self._cancel_late)
            raise
        except Exception as error:
            if _NO_CONTROLLER in str(error):  # it may come back, for an engine that is replaced
                raise HostUnreachableError(
                    f"Slurm's controller does not answer: {error}.", host="slurmctld"
                ) from error
            raise PoolStartError(
                f"Slurm takes no job of {len(orders)} engines: {error}. What is asked for stands "
                f"in {self._cluster.place}; `jupyter mgpu cluster check {self._cluster.name}` "
                "tells more."
            ) from error
        return self._job(job_id, len(orders))

    def _job(self, job_id: str, size: int) -> SlurmJob:
        return SlurmJob(job_id, size, Path(self._log(job_id)))

    def _cancel_late(self, submitted: "Future[str]") -> None:
        if submitted.exception() is None:
            self._job(submitted.result(), 1).cancel()

    def _run_sbatch(self, orders: Sequence[Order]) -> str:
        from jupyter_mgpu.transport.launchers import PoolSlurmLauncher  # imports ipyparallel

        options = self._options or SlurmOptions()
        words = ["sbatch", f"--job-name={self._name}", f"--ntasks={len(orders)}", "--export=ALL"]
        # Engines that are started again would come with the names of others, who are gone.
        words += ["--no-requeue", f"--output={self._log('%j')}"]
        if self._num_gpus and options.template is None:
            words.append(f"--gpus-per-task={self._num_gpus}")
        environments = [order.environment for order in orders]
        folder = tempfile.mkdtemp(prefix="mgpu-")
        try:
            launcher = PoolSlurmLauncher(
                submit_command=[*words, *slurm_words(options)],
                batch_template=options.template or TEMPLATE,
                batch_file_name=str(Path(folder) / "engines.sbatch"),
                namespace={"gpus": self._num_gpus},
                profile_dir=folder,
                log=quiet_log.LOG,
                output_file=self._log("%j"),
                engine_cmd=[python_of(self._cluster)],
                engine_args=list(orders[0].command),
                environment={
                    **launch_environment(self._cluster),
                    **SRUN_ENVIRONMENT,
                    **folded.fold(environments, RANK, TAKEN),
                },
            )
            return str(launcher.start(len(orders)))
        finally:
            shutil.rmtree(folder)  # Slurm has its own copy of the script

    def _log(self, job_id: str) -> str:
        return str(self._logs / f"{self._name}-{job_id}.log")

    async def close(self) -> None:
        """Cancel what is left in the queue."""
        if self._canceller is None:
            return
        canceller, self._canceller = self._canceller, None
        # What comes into the queue later would stay there.
        late = map(asyncio.wrap_future, tuple(self._submitting))
        await asyncio.wait([asyncio.gather(*late, return_exceptions=True)], timeout=CLOSE_S)
        if canceller.stdin is not None:
            canceller.stdin.close()
        deadline_s = time.monotonic() + CLOSE_S
        while canceller.poll() is None and time.monotonic() < deadline_s:
            await asyncio.sleep(0.01)


def _log_folder() -> Path:
    """Return where jobs write: below the home, which the nodes mostly have as well."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jupyter_mgpu"
    why: object = "it may not be written to"
    try:
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        why = error.strerror
    else:
        if os.access(base, os.W_OK | os.X_OK):
            return base
    raise PoolStartError(
        f"Jobs of Slurm write what they print to {base}, but {why}. Set XDG_CACHE_HOME to a "
        "folder of yours that the nodes see as well, before the kernel starts."
    )


def _start_canceller(name: str, logs: Path) -> "subprocess.Popen[bytes]":
    """Start what cancels all jobs of a name as soon as this process closes its end of a pipe."""
    return subprocess.Popen(
        ["/bin/sh", "-c", _CANCELLER, "sh", name, getpass.getuser(), str(logs)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
