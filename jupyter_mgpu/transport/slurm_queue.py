"""What Slurm says of a job: waiting for what, running where and how long, or how it ended."""

import asyncio
import subprocess
import time
from dataclasses import dataclass

from jupyter_mgpu.clusters.commands import ask
from jupyter_mgpu.daemon_thread import call_in_thread

ANSWER_TIMEOUT_S = 20.0
EXPLAIN_S = 4.0
LOOK_S = 60.0
_FIELDS = "%T|%r|%L|%N|%P|%Q"

_ENDS = {
    "BOOT_FAIL": "ended, since a node did not boot",
    "CANCELLED": "was cancelled",
    "COMPLETED": "has ended",
    "COMPLETING": "is being ended by Slurm: it was cancelled or preempted, or ran out of time",
    "DEADLINE": "was ended at its deadline",
    "FAILED": "failed",
    "NODE_FAIL": "lost a node",
    "OUT_OF_MEMORY": "ran out of memory",
    "PREEMPTED": "was preempted by another job",
    "REVOKED": "was revoked",
    "TIMEOUT": "ran out of its time limit",
}

_BY_ITSELF = ("COMPLETED", "FAILED")
_WHY_COMPLETING = {"NodeDown": "NODE_FAIL", "TimeLimit": "TIMEOUT"}
"""What a job that is being ended will be said to have ended by, from its reason."""
_NEXT_STEPS = {
    "NODE_FAIL": "`sinfo -R` says why; a new job is asked for in its place",
    "OUT_OF_MEMORY": 'ask for more, as in options = ["--mem-per-cpu=16G"]',
    "TIMEOUT": "ask for more with `time` in the cluster's description",
}
_FOR_GOOD = ("CANCELLED", "COMPLETING", "DEADLINE", "PREEMPTED", "REVOKED", "TIMEOUT")


@dataclass(frozen=True, slots=True)
class Job:
    """A job, now.

    Attributes:
        state: Slurm's word, such as PENDING, RUNNING or TIMEOUT.
        reason: Why it waits, or why it ended.
        left: The time that is left, as Slurm writes it.
        nodes: The nodes that it runs on, as Slurm writes them.
        partition: Where it is queued.
        priority: Its place in the queue.
    """

    state: str
    reason: str
    left: str
    nodes: str
    partition: str
    priority: int

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or is being ended."""
        return self.state in _ENDS

    @property
    def is_unwanted(self) -> bool:
        """Whether it was ended so that another job would undo what somebody wanted."""
        return self.state in _FOR_GOOD

    @property
    def why(self) -> str:
        """Why it waits, in Slurm's word."""
        return "not looked at yet" if self.reason == "None" else self.reason

    @property
    def end(self) -> str:
        """How it ended, as a clause."""
        return _ENDS.get(self.state, f"is {self.state.lower()}")

    @property
    def next_step(self) -> str:
        """What to do about its end, in parentheses with a space before; empty if nobody knows."""
        return f" ({step})" if (step := _NEXT_STEPS.get(self.state)) else ""


class JobClock:
    """Knows how long a job may still run, and asks Slurm rarely.

    Args:
        job_id: The job.
    """

    def __init__(self, job_id: str) -> None:
        self._id = job_id
        self._nodes = ""
        self._ends_s: float | None = None
        self._looked_s: float | None = None

    def look(self) -> None:
        """Ask Slurm, in the background: a limit may be changed while the job runs."""
        self._looked_s = time.monotonic()
        call_in_thread(self._look, "mgpu-squeue")

    def _look(self) -> None:
        job = read_job(self._id)
        if job is not None:
            left_s = seconds(job.left)
            self._nodes = job.nodes
            self._ends_s = None if left_s is None else time.monotonic() + left_s

    def note(self) -> str:
        """Say where the job runs and how long it may, from what is known."""
        if self._looked_s is None or time.monotonic() - self._looked_s > LOOK_S:
            self.look()
        where = f" on {self._nodes}" if self._nodes else ""
        if self._ends_s is None:
            return f"Slurm's job {self._id} runs{where}"
        left_s = max(0, round(self._ends_s - time.monotonic()))
        hours, minutes = divmod(left_s // 60, 60)
        return f"Slurm's job {self._id} runs{where}, {hours}:{minutes:02}:{left_s % 60:02} left"


def seconds(text: str) -> float | None:
    """Read a time as Slurm writes it, such as 1-02:03:04 or 5:00; None for no limit."""
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in (*parts, days or "0")):
        return None  # UNLIMITED, INVALID
    total = 0.0
    for part in parts:
        total = total * 60 + int(part)
    return total + 86400 * int(days or 0)


def node_addresses(*options: str) -> list[str]:
    """List the addresses of nodes, as Slurm itself reaches them.

    Args:
        options: Which nodes, as sinfo takes it, such as "--partition=gpu".
    """
    return [address for line in _ask("sinfo", "--format=%o", *options) if (address := line.strip())]


def read_job(job_id: str) -> Job | None:
    """Ask for a job; None if Slurm does not know it (any more), or does not answer."""
    said = _ask("squeue", "--states=all", f"--jobs={job_id}", f"--format={_FIELDS}")
    if not said:
        return None
    state, reason, left, nodes, partition, priority = said[0].split("|")
    if state == "COMPLETING":
        state = _WHY_COMPLETING.get(reason, state)
    return Job(state, reason, left, nodes, partition, int(priority))


def num_ahead(job_id: str, job: Job) -> int:
    """Count the waiting jobs that come before one in its partition, as far as one may see them."""
    ahead = 0
    for line in _ask(
        "squeue", "--states=PENDING", f"--partition={job.partition}", "--format=%A|%Q"
    ):
        other, priority = line.split("|")
        if other != job_id:
            ahead += (-int(priority), int(other)) < (-job.priority, int(job_id))
    return ahead


async def ended_job(job_id: str) -> Job | None:
    """Return a job that Slurm has ended; None if it runs, ended by itself, or nobody knows."""
    return await asyncio.wrap_future(call_in_thread(lambda: _ended_job(job_id), "mgpu-squeue"))


async def on_silence(job_id: str, node: str, silent_s: float) -> str:
    """Say, as a clause on its engine, what Slurm knows of a node that is not heard of any more.

    Args:
        job_id: The job that runs there.
        node: The node.
        silent_s: How long it has been silent.
    """

    def look() -> tuple[Job | None, list[str]]:
        return read_job(job_id), _ask("sinfo", "--format=%T", f"--nodes={node}")

    job, states = await asyncio.wrap_future(call_in_thread(look, "mgpu-squeue"))
    known = job.state.lower() if job is not None else "not known (any more)"
    calls = f"calls the node {states[0]}" if states else "does not say how the node is"
    return (
        f"was lost: {node} has not been heard of for {silent_s:g} s (Slurm's job {job_id} is "
        f"{known}, and Slurm {calls}: it is down, or the network to it is cut; "
        f"`scontrol show node {node}` tells more; a new engine is asked for)"
    )


def _ended_job(job_id: str) -> Job | None:
    """Ask until the cause is told, which a job that is being ended does at its very end only."""
    deadline_s = time.monotonic() + EXPLAIN_S
    while True:
        job = read_job(job_id)
        if job is None or not job.is_over or job.state in _BY_ITSELF:
            return None
        if job.state != "COMPLETING" or time.monotonic() > deadline_s:
            return job
        time.sleep(0.1)


def _ask(program: str, *options: str) -> list[str]:
    try:
        done = ask([program, "--noheader", *options], ANSWER_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []
