"""Plain Python processes that act as engines, to test collectives without a pool.

The parent holds a Rendezvous in an asyncio loop, as the owner does. A child runs cells on its main
thread and answers a control thread, as an engine does.
"""

import asyncio
import atexit
import contextlib
import functools
import io
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from jupyter_mgpu.on_engine import comm, imports, process_group
from jupyter_mgpu.rendezvous import Rendezvous

STILL_S = 0.5
TIMEOUT_S = 60.0


class PlainEngine:
    """One child process, seen from the parent."""

    def __init__(
        self, environment: dict[str, str], rank: int, command: tuple[str, ...] = ()
    ) -> None:
        self.rank = rank
        self.process = subprocess.Popen(
            [*command, sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2", **environment},
            text=True,
        )
        self.pid = self.process.pid
        self.is_busy = False
        self.done: queue.Queue[dict[str, Any]] = queue.Queue()
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def start(self, source: str, **header: Any) -> None:
        """Start a cell."""
        self.is_busy = True
        self._send(op="run", source=source, **header)

    def result(self, timeout: float = TIMEOUT_S) -> dict[str, Any]:
        """Wait for the reply to the cell."""
        try:
            reply = self.done.get(timeout=timeout)
        except queue.Empty:
            state = self.control("state")
            raise AssertionError(f"rank {self.rank} has not ended its cell: {state}") from None
        self.is_busy = False
        return reply

    def control(self, op: str, **details: Any) -> dict[str, Any]:
        """Ask the control thread: `state`, `interrupt` or `abort`, which needs the `cell`."""
        self._send(op=op, **details)
        try:
            return self._answers.get(timeout=TIMEOUT_S)
        except queue.Empty:
            raise AssertionError(f"rank {self.rank} (pid {self.pid}) does not answer") from None

    def _send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            (self.done if message.pop("op") == "done" else self._answers).put(message)
        self.done.put({"status": "died"})


class PlainPool:
    """Some engines and the rendezvous between them."""

    def __init__(self, size: int = 2, *, command: tuple[str, ...] = ()) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.rendezvous = Rendezvous()
        self.loop.call_soon_threadsafe(self.rendezvous.watch, self.loop)
        self.generation = 0
        self._command = command
        self.engines = [self._start(rank, size) for rank in range(size)]

    def run(self, source: str | dict[int, str], ranks: tuple[int, ...] | None = None) -> None:
        """Start a cell on these ranks, or one source per rank."""
        sources = source if isinstance(source, dict) else None
        ranks = tuple(sources) if sources else ranks or tuple(range(len(self.engines)))
        for place, rank in enumerate(ranks):
            self.engines[rank].start(
                sources[rank] if sources else source,
                generation=self.generation,
                members=ranks,
                environment={"RANK": str(place), "WORLD_SIZE": str(len(ranks))},
            )

    def results(self, timeout: float = TIMEOUT_S, ranks: tuple[int, ...] = ()) -> list[Any]:
        """Collect the cell's results as the owner does; raises the generation if it must."""
        engines = [self.engines[rank] for rank in ranks] if ranks else self.engines
        replies = [engine.result(timeout) for engine in engines]
        if any(reply["status"] == "died" or not reply["health"]["usable"] for reply in replies):
            self.generation += 1
        return replies

    def values(self, source: str, ranks: tuple[int, ...] | None = None) -> list[Any]:
        """Run a cell that must succeed and return what it left in `out`."""
        self.run(source, ranks)
        replies = self.results(ranks=ranks or ())
        assert [reply["status"] for reply in replies] == ["ok"] * len(replies), replies
        return [reply["out"] for reply in replies]

    def stop(self, ranks: tuple[int, ...] | None = None) -> list[Any]:
        """The owner's policy: SIGINT, wait until a rank is still for a while, abort that one."""
        engines = [self.engines[rank] for rank in ranks or range(len(self.engines))]
        for engine in engines:
            engine.control("interrupt")
        replies: dict[int, Any] = {}
        deadline = time.monotonic() + TIMEOUT_S
        before = {engine.rank: engine.control("state") for engine in engines}
        while len(replies) < len(engines):
            assert time.monotonic() < deadline, "an engine did not stop"
            self._collect(engines, replies)
            for engine in engines:
                if engine.rank in replies:
                    continue
                after = engine.control("state")
                if process_group.is_still(before[engine.rank], after):
                    engine.control("abort", cell=after["cell"])
                before[engine.rank] = after
        if any(not reply["health"]["usable"] for reply in replies.values()):
            self.generation += 1
        return [replies[engine.rank] for engine in engines]

    def free(self, rank: int) -> None:
        """What the owner does for a rank whose peers have failed: abort it once it is still."""
        engine = self.engines[rank]
        before = engine.control("state")
        while True:
            threading.Event().wait(STILL_S)
            after = engine.control("state")
            if process_group.is_still(before, after):
                engine.control("abort", cell=after["cell"])
                return
            before = after

    def replace(self, rank: int) -> None:
        """Start a new engine on a rank whose process has ended."""
        self.engines[rank] = self._start(rank, len(self.engines))

    def close(self) -> None:
        """End everything."""
        for engine in self.engines:
            engine.process.kill()
            engine.process.wait()
        asyncio.run_coroutine_threadsafe(self._close(), self.loop).result(TIMEOUT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _collect(self, engines: list[PlainEngine], replies: dict[int, Any]) -> None:
        deadline = time.monotonic() + STILL_S
        for engine in engines:
            if engine.rank not in replies:
                with contextlib.suppress(queue.Empty):
                    left = max(0.0, deadline - time.monotonic())
                    replies[engine.rank] = engine.done.get(timeout=left)
                    engine.is_busy = False

    async def _close(self) -> None:
        self.rendezvous.close()

    def _start(self, rank: int, size: int) -> PlainEngine:
        environment = self.rendezvous.environment(rank, size, self.generation)
        return PlainEngine(environment, rank, self._command)


@contextlib.contextmanager
def plain_pool(size: int = 2, *, command: tuple[str, ...] = ()) -> Iterator[PlainPool]:
    """A pool of plain processes that is gone afterwards."""
    pool = PlainPool(size, command=command)
    try:
        yield pool
    finally:
        pool.close()


def shared_pool() -> PlainPool:
    """The two engines that the tests share: importing torch takes seconds."""
    pool = _start_shared_pool()
    for engine in pool.engines:
        if engine.is_busy:  # a test failed and left its cell running
            engine.process.kill()
            pool.replace(engine.rank)
            pool.generation += 1
    return pool


@functools.cache
def _start_shared_pool() -> PlainPool:
    pool = PlainPool()
    atexit.register(pool.close)
    pool.values("import torch, torch._dynamo, torch.distributed")
    return pool


class Child:
    """The child's side: cells on the main thread, control on another."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        self._lock = threading.Lock()
        os.dup2(2, 1)
        self._cells: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._is_armed = False
        self._delivered = threading.Event()
        self._namespace: dict[str, Any] = {"comm": comm, "process_group": process_group}

    def serve(self) -> None:
        """Run cells until the parent closes the pipe."""
        process_group.install()
        signal.signal(signal.SIGINT, self._on_sigint)
        threading.Thread(target=self._control, daemon=True).start()
        while True:
            self._run(self._cells.get())

    def _run(self, cell: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"status": "ok", "kind": None}
        printed = io.StringIO()
        try:
            os.environ.update(cell["environment"])
            process_group.begin(cell["generation"], cell["members"])
            self._namespace["out"] = None
            code = compile(cell["source"], "<cell>", "exec")
            self._is_armed = True
            try:
                with contextlib.redirect_stdout(printed):
                    exec(code, self._namespace)
            finally:
                self._is_armed = False
            process_group.check()
        except BaseException as error:  # noqa: BLE001  every cell gets a reply
            text = "".join(traceback.format_exception(error))
            reply.update(status="error", ename=type(error).__name__, evalue=str(error), text=text)
            reply["kind"] = process_group.failure_kind(error)
        reply.update(health=process_group.health(), out=self._namespace["out"])
        reply["printed"] = printed.getvalue()
        self._reply(op="done", **reply)
        if reply["status"] == "error":
            process_group.after_interrupt()
            process_group.forget_tracebacks()

    def _control(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if message["op"] == "run":
                self._cells.put(message)
            elif message["op"] == "interrupt":
                threading.Thread(target=self._interrupt, daemon=True).start()
                self._reply(op="answer")
            elif message["op"] == "state":
                self._reply(op="answer", **process_group.state())
            elif message["op"] == "abort":
                self._reply(op="answer", **process_group.abort(message["cell"]))
        os._exit(0)

    def _interrupt(self) -> None:
        self._delivered.clear()
        while self._is_armed and not self._delivered.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            self._delivered.wait(0.02)

    def _on_sigint(self, _signum: int, frame: FrameType | None) -> None:
        if self._delivered.is_set() or not self._is_armed or imports.in_protected_import(frame):
            return
        self._delivered.set()
        raise KeyboardInterrupt

    def _reply(self, **message: Any) -> None:
        with self._lock:
            self._out.write(json.dumps(message) + "\n")
            self._out.flush()


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent.parent)
    Child().serve()
