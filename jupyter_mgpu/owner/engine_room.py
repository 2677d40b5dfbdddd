"""Starts the engines of a pool, notices their deaths, and puts new ones in their place."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from jupyter_mgpu.daemon_thread import call_in_thread
from jupyter_mgpu.engines import EngineState
from jupyter_mgpu.errors import HostUnreachableError, PoolStartError
from jupyter_mgpu.owner.engine_record import (
    MAX_FAILED_STARTS,
    Death,
    EngineRecord,
    describe_exit,
    oom_kills,
)
from jupyter_mgpu.owner.plans import EnginePlan
from jupyter_mgpu.transport.cluster import PoolCluster
from jupyter_mgpu.transport.processes import EngineProcess

UNREACHABLE_S = 15 * 60.0
"""So long a host that does not answer is tried again before its engine is given up."""
UNREACHABLE_PAUSE_S = 3.0

Environment = Callable[[EngineRecord, int], dict[str, str]]
"""Makes the rendezvous variables of an engine that is about to start, in a pool of a size."""


class EngineRoom:
    """The engines of one pool, by rank. All methods run in the owner's event loop.

    Args:
        cluster: Starts the processes.
        folder: Where the ranks' log files are.
        record: The pool's record, which an engine's guard removes when the owner is gone.
        environment: Makes the variables that an engine is started with, beside its pin.
        settle: Gives an engine that joins others its place on its host, and waits until it has it.
        start_timeout_s: How long an engine may take to start.
        on_death: Called when an engine's process has ended, before it is replaced: with the
            engine and how it ended.
        on_ready: Called when an engine has taken the place of one that died.
        on_failed_start: Called when there will be no engine for a rank: with it, and why.
    """

    def __init__(
        self,
        cluster: PoolCluster,
        folder: Path,
        record: Path,
        environment: Environment,
        settle: Callable[[EngineRecord], Awaitable[None]],
        start_timeout_s: float,
        on_death: Callable[[EngineRecord, Death], None],
        on_ready: Callable[[EngineRecord], None],
        on_failed_start: Callable[[EngineRecord, str], None],
    ) -> None:
        self.engines: dict[int, EngineRecord] = {}
        self._cluster = cluster
        self._folder = folder
        self._record = record
        self._environment = environment
        self._settle = settle
        self._start_timeout_s = start_timeout_s
        self._on_death = on_death
        self._on_ready = on_ready
        self._on_failed_start = on_failed_start
        self._loop = asyncio.get_running_loop()
        self._joining: dict[int, EngineRecord] = {}  # of the pool only when all of them are ready
        self._growing: asyncio.Task[None] | None = None
        self._numbers: dict[int, int] = {}  # the next one of ranks that were given up
        self._jobs: dict[EngineRecord, asyncio.Task[None]] = {}  # replacements under way
        self._leaving: list[EngineProcess] = []  # killed, and not gone yet
        self._replaces = False
        self._is_closing = False

    def find(self, name: str) -> EngineRecord | None:
        """Return the engine of a name such as `0.3`, None for one that was replaced."""
        rank = name.partition(".")[0]
        engine = self.known.get(int(rank)) if rank.isdigit() else None
        return engine if engine is not None and engine.name == name else None

    @property
    def known(self) -> dict[int, EngineRecord]:
        """The engines by rank, with those that are on their way."""
        return {**self.engines, **self._joining} if self._joining else self.engines

    @property
    def is_growing(self) -> bool:
        """Whether engines start that are to be added to those that there are."""
        return self._growing is not None

    async def start(self, plans: Sequence[EnginePlan]) -> None:
        """Start engines and wait until each has said hello; from then on they are replaced.

        Engines that are added to others count when all of them are ready: until then the pool is as
        it was, and they may wait in a queue for long.

        Raises:
            PoolStartError: If one does not come up; none of them is left then.
        """
        added = [
            EngineRecord(
                plan,
                self._folder / f"rank{plan.rank}.log",
                first_number=self._numbers.get(plan.rank, 0),
            )
            for plan in plans
        ]
        by_rank = {engine.rank: engine for engine in added}
        if not self.engines:
            self.engines.update(by_rank)
            await self._start_all(added)
            self._replaces = True
            return
        self._joining, self._growing = by_rank, asyncio.current_task()
        try:
            await self._start_all(added)
        finally:
            self._joining, self._growing = {}, None
        self.engines.update(by_rank)

    async def _start_all(self, added: Sequence[EngineRecord]) -> None:
        starts = [asyncio.ensure_future(self._start(engine)) for engine in added]
        try:
            await asyncio.gather(*starts)
            for engine in added:
                await self._settle(engine)
                if engine.state is EngineState.DEAD:  # since it was ready, while others started
                    raise PoolStartError(engine.doom or f"Rank {engine.rank} has died.")
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            for engine in added:
                self.dismiss(engine)
            raise

    async def _start(self, engine: EngineRecord) -> None:
        engine.hello.clear()
        engine.state = EngineState.STARTING
        engine.log_start = engine.log.stat().st_size if engine.log.exists() else 0
        # An engine of the pool that is replaced meanwhile does not count those that join.
        num_joining = len(self._joining) if self._joining.get(engine.rank) is engine else 0
        environment = {
            **engine.plan.environment,
            **self._environment(engine, len(self.engines) + num_joining),
            "MGPU_DEVICE": engine.plan.torch_device,
            "MGPU_LOG": str(engine.log),
        }
        process = engine.process = await self._cluster.start_engine(
            engine.rank, engine.number, environment, self._record, engine.plan.placement
        )
        process.watch(functools.partial(self._on_exit, engine))
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await asyncio.gather(engine.hello.wait(), process.ready(), self._prove(engine))
        except TimeoutError:
            words = engine.last_words(self._cluster.output_of(engine.rank))
            pid = process.pid
            raise PoolStartError(
                f"The engine of rank {engine.rank} did not start within "
                f"{self._start_timeout_s:g} s (process {pid}). Its last lines: {words or 'none'}"
            ) from None
        if engine.state is EngineState.DEAD:
            raise PoolStartError(engine.doom or f"The engine of rank {engine.rank} has died.")
        if engine.starts > 0:  # in the order of their ranks, of those that start together
            await self._settle(engine)
        engine.failed_starts = 0
        engine.state = EngineState.IDLE
        engine.free.set()

    async def _prove(self, engine: EngineRecord) -> None:
        """Ask CUDA, in a child with the engine's environment, which GPUs it would get."""
        if engine.plan.judge is not None and engine.process is not None:
            seen = await engine.process.visible_gpus()
            engine.proven, error = engine.plan.judge(seen)
            if error is not None:
                raise PoolStartError(error)
            if seen.labels:  # a scheduler has chosen them
                engine.plan = replace(engine.plan, device=", ".join(seen.labels))
        if engine.plan.prove is not None:
            # It may hang in the driver: nothing ever waits for its thread.
            answer = call_in_thread(engine.plan.prove, "mgpu-proof")
            proof = await asyncio.wrap_future(answer)
            engine.proven, error = proof
            if error is not None:
                raise PoolStartError(error)

    def _on_exit(self, engine: EngineRecord) -> None:
        process = engine.process
        if process is None:
            return
        process.unwatch()
        was_starting = engine.state is EngineState.STARTING
        is_replaced = engine.doom is not None
        message = self._explain(engine, process, was_starting=was_starting)
        engine.process = None
        process.close()
        if self._is_closing:
            return
        self._cluster.unregister(engine.rank)
        engine.state = EngineState.DEAD
        engine.doom = message
        self._on_death(engine, Death(message, process.exit_code(), is_replaced))
        engine.hello.set()  # ends a wait for the start
        if self._replaces and not was_starting:
            self.spawn_replacement(engine)

    def _explain(self, engine: EngineRecord, process: EngineProcess, *, was_starting: bool) -> str:
        if engine.doom is not None:
            return engine.doom
        what = f" while it ran {engine.task.name!r}" if engine.task is not None else ""
        what = " while it started" if was_starting else what
        who = f"The engine of rank {engine.rank} ({engine.place}, process {process.pid})"
        code = process.exit_code()
        parts = [f"{who} {process.lost or describe_exit(code)}{what}."]
        if engine.rss_bytes is not None and not was_starting:
            parts.append(f"Its memory was {engine.rss_bytes / 2**20:,.0f} MiB at the last look.")
        kills = oom_kills()
        if code == -9 and kills and not engine.is_far:
            parts.append(f"The system has ended {kills} processes here for lack of memory so far.")
        words = engine.last_words(self._cluster.output_of(engine.rank))
        if words:
            return f"{' '.join(parts)}\nIts last lines:\n{words}"
        return " ".join(parts)

    def spawn_replacement(self, engine: EngineRecord) -> None:
        """Start a new engine on a rank that has none, in the background."""
        if engine not in self._jobs and not self._is_closing:
            self._jobs[engine] = self._loop.create_task(self._replace(engine))

    async def _replace(self, engine: EngineRecord) -> None:
        try:
            await self._try_to_replace(engine)
        finally:
            self._jobs.pop(engine, None)

    async def _try_to_replace(self, engine: EngineRecord) -> None:
        """Start a new engine on the same rank and device, in a few tries."""
        why = ""
        deadline_s = self._loop.time() + UNREACHABLE_S
        while engine.failed_starts < MAX_FAILED_STARTS:
            engine.starts += 1
            engine.doom = None
            try:
                await self._start(engine)
            except HostUnreachableError as error:  # it may come back: that is no failed start
                engine.failed_starts += self._loop.time() > deadline_s
                why = str(error)
                self._end_process(engine)
                await asyncio.sleep(UNREACHABLE_PAUSE_S)
            except (PoolStartError, OSError) as error:  # it dies, or there can be no process
                engine.failed_starts += 1
                why = str(error)
                self._end_process(engine)
            else:
                self._on_ready(engine)
                return
        engine.state = EngineState.DEAD
        engine.lost = why.partition("\n")[0]
        self._on_failed_start(engine, why)

    def losses(self) -> list[str]:
        """Say which ranks have no engine any more, and why; any thread may call it."""
        ranks: dict[str, list[int]] = {}
        for engine in list(self.engines.values()):
            if engine.is_given_up:
                ranks.setdefault(engine.lost, []).append(engine.rank)
        return [
            f"no engine on rank {', '.join(map(str, own))}: {why}" for why, own in ranks.items()
        ]

    def replace(self, engine: EngineRecord, why: str) -> None:
        """End an engine now; a new one takes its place."""
        engine.failed_starts = 0
        if engine.process is not None:
            engine.doom = why
            if engine.state is EngineState.IDLE:
                engine.state = EngineState.STOPPING  # it gets no further task
            engine.process.kill()
        elif engine.state is EngineState.DEAD:
            self.spawn_replacement(engine)

    def dismiss(self, engine: EngineRecord) -> None:
        """End an engine that gets no successor."""
        self.engines.pop(engine.rank, None)
        self._cluster.unregister(engine.rank)  # one that was only joining as well
        self._numbers[engine.rank] = engine.number + 1
        if (job := self._jobs.pop(engine, None)) is not None:
            job.cancel()
        self._end_process(engine)

    def _end_process(self, engine: EngineRecord) -> None:
        process, engine.process = engine.process, None
        if process is not None:
            self._leaving.append(process)
            process.watch(functools.partial(self._on_gone, process))
            process.kill()

    def _on_gone(self, process: EngineProcess) -> None:
        process.unwatch()
        self._leaving.remove(process)
        process.close()

    async def close(self, timeout_s: float) -> list[int]:
        """End all engines at once, also busy and stopped ones.

        Returns:
            The processes that are still there after the time-out, as a driver may hold them.
        """
        if self._growing is not None:
            self._growing.cancel()
            await asyncio.wait([self._growing])
        self._is_closing = True
        for job in list(self._jobs.values()):
            job.cancel()
        left = [engine.process for engine in self.engines.values() if engine.process is not None]
        left += self._leaving
        for process in left:
            process.unwatch()
            process.kill()
        ending = list(left)
        deadline_s = self._loop.time() + timeout_s
        while left and self._loop.time() < deadline_s:
            await asyncio.sleep(0.005)
            left = [process for process in left if process.is_alive()]
        for process in ending:
            process.close()
        # On a host that does not answer any more they end by themselves.
        return [process.pid for process in left if process.pid and process.host is None]
