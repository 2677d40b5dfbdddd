"""One job of Slurm that runs engines: waited for, explained, cancelled."""

import asyncio
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from jupyter_mgpu.daemon_thread import call_in_thread
from jupyter_mgpu.errors import PoolStartError
from jupyter_mgpu.on_engine import owner_address
from jupyter_mgpu.transport import slurm_queue
from jupyter_mgpu.transport.placement import Order
from jupyter_mgpu.transport.slurm_queue import Job

SHORTEST_POLL_S, LONGEST_POLL_S = 0.2, 5.0
RUNNING_POLL_S = 1.0
QUIET_S = 1.0
"""So long a job may wait before that is worth a line."""
LAST_BYTES = 4096

Answer = TypeVar("Answer")


class SlurmJob:
    """A job that was submitted.

    Args:
        job_id: Its number.
        size: How many engines it runs.
        log: What it writes to, where the nodes share that folder.

    Attributes:
        over: Why no other job may take its place, as a clause; None if one may.
    """

    def __init__(self, job_id: str, size: int, log: Path) -> None:
        self._id = job_id
        self._size = size
        self._log = log
        self._clock = slurm_queue.JobClock(job_id)
        self._is_given_up = False
        self.over: str | None = None

    def kill(self) -> None:
        """Cancel the job of a single engine; of several, one cannot be told from the others."""
        if self._size == 1:
            self.cancel()

    def cancel(self) -> None:
        """Have Slurm end the job; nobody waits for that."""
        self._is_given_up = True
        command = ["scancel", "--quiet", self._id]
        call_in_thread(lambda: subprocess.run(command, check=False), "mgpu-scancel")

    async def explain(self, silent: str | None, silent_s: float, /) -> str | None:
        """Say how Slurm has ended the job, or what it knows of a silent node, as a clause."""
        job = await slurm_queue.ended_job(self._id)
        if job is None:
            return silent and await slurm_queue.on_silence(self._id, silent, silent_s)
        end = f"Slurm's job {self._id} {job.end}"
        self.over = end if job.is_unwanted and not self._is_given_up else None
        return f"has ended: {end}{job.next_step}"

    def note(self) -> str | None:
        """Say where the job runs, and how long it may."""
        return self._clock.note()

    async def wait(
        self, orders: Sequence[Order], timeout_s: float, say: Callable[[str], None]
    ) -> None:
        """Wait until its engines have begun, in the queue for as long as it takes.

        Args:
            orders: Its engines.
            timeout_s: How long they may take once the job runs.
            say: Tells the user what the job waits for.

        Raises:
            PoolStartError: If the job ends, or an engine does not begin in time.
        """
        waiting = {order.begun for order in orders}
        poll_s, submitted_s = SHORTEST_POLL_S, time.monotonic()
        running_s: float | None = None
        told = ""
        while waiting:
            _, waiting = await asyncio.wait(waiting, timeout=poll_s)
            poll_s = min(1.2 * poll_s, LONGEST_POLL_S)
            job = await _in_thread(lambda: slurm_queue.read_job(self._id)) if waiting else None
            if job is None:
                continue
            if job.is_over:
                raise PoolStartError(self._failure(f"{job.end}, before its engines began", orders))
            if job.state == "PENDING":
                words = await _in_thread(lambda job=job: self._waiting_words(job))  # type: ignore[misc]
                if words != told and time.monotonic() - submitted_s > QUIET_S:
                    say(words)
                    told = words
                continue
            poll_s = max(poll_s, RUNNING_POLL_S)  # its engines start, and need the cores
            running_s = running_s or time.monotonic()
            if time.monotonic() - running_s > timeout_s:
                missing = f"{len(waiting)} of its {self._size} engines did not begin"
                raise PoolStartError(
                    self._failure(
                        f"runs on {job.nodes}, but {missing} within {timeout_s:g} s", orders
                    )
                )
        self._clock.look()
        if told:
            say(f"Slurm's job {self._id} runs.")

    def _waiting_words(self, job: Job) -> str:
        ahead = slurm_queue.num_ahead(self._id, job)
        return (
            f"Slurm's job {self._id} waits in the partition {job.partition}: {job.why}"
            f"{f', {ahead} ahead' if ahead else ''}. Stop cancels it."
        )

    def _failure(self, what: str, orders: Sequence[Order]) -> str:
        try:
            lines = self._log.read_bytes()[-LAST_BYTES:].decode(errors="replace").strip()
        except OSError:
            lines = ""
        if addresses := orders[0].environment.get(owner_address.VARIABLE):
            what += f"; they should reach this host at {addresses.replace(',', ', ')}"
        said = f"\nIts last lines:\n{lines}" if lines else ""
        return f"Slurm's job {self._id} {what}.{said}"


async def _in_thread(function: Callable[[], Answer]) -> Answer:
    return await asyncio.wrap_future(call_in_thread(function, "mgpu-slurm"))
