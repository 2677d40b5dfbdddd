"""One engine's process as its owner sees it, on this machine."""

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Callable
from typing import Any, Protocol

from jupyter_mgpu import cuda


class EngineProcess(Protocol):
    """One started engine process, here or on another host.

    Attributes:
        pid: The process; on its own host, and None until that is known.
        host: The other host's name, None for this machine.
        rss_bytes: Its memory by its guard's last word; None on this machine, where it is read.
        lost: Why it counts as ended though nobody saw its end; None for all others.
        last_words: What it wrote last; empty on this machine, where it is read.
        way: The owner's address that it has reached; None on this machine.
    """

    pid: int | None
    host: str | None
    rss_bytes: int | None
    lost: str | None
    last_words: str
    way: str | None

    def watch(self, on_exit: Callable[[], None]) -> None:
        """Have a function called when it has ended, in place of the one before."""

    def unwatch(self) -> None:
        """Have nothing called."""

    def is_alive(self) -> bool:
        """Tell whether it has not ended, as far as anybody knows; a zombie has."""

    def kill(self) -> None:
        """End it and its children at once; also when it is stopped (SIGSTOP)."""

    async def ready(self) -> None:
        """Wait until its guard watches it, or it has ended."""

    async def visible_gpus(self) -> cuda.Answer:
        """Wait for what CUDA shows it; only of another host, and asked for by its environment."""

    def exit_code(self) -> int | None:
        """Return how it ended: a code, a negative signal number, or None where nobody knows."""

    def close(self) -> None:
        """Forget the process, once it has ended."""


class LocalProcess:
    """An engine of this machine, known by a pidfd, which stays right when a pid is used again.

    Args:
        launcher: ipyparallel's handle of it. The process leads a session and process group.
        loop: The owner's event loop.
    """

    host: str | None = None
    rss_bytes: int | None = None
    lost: str | None = None
    last_words = ""
    way: str | None = None

    def __init__(self, launcher: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.pid: int | None = launcher.pid
        self._pid: int = launcher.pid
        self._launcher = launcher
        self._loop = loop
        self._pidfd = os.pidfd_open(launcher.pid)

    def watch(self, on_exit: Callable[[], None]) -> None:  # noqa: D102 - as in EngineProcess
        self._loop.add_reader(self._pidfd, on_exit)

    def unwatch(self) -> None:  # noqa: D102 - as in EngineProcess
        self._loop.remove_reader(self._pidfd)

    def is_alive(self) -> bool:  # noqa: D102 - as in EngineProcess
        ended, _, _ = select.select([self._pidfd], [], [], 0)
        return not ended

    def kill(self) -> None:  # noqa: D102 - as in EngineProcess
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)

    async def ready(self) -> None:  # noqa: D102 - as in EngineProcess
        return

    async def visible_gpus(self) -> cuda.Answer:  # noqa: D102 - as in EngineProcess
        return cuda.Answer(None, "on this machine the pool asks itself")

    def exit_code(self) -> int | None:  # noqa: D102 - as in EngineProcess
        return self._launcher.reap()  # type: ignore[no-any-return]

    def close(self) -> None:  # noqa: D102 - as in EngineProcess
        self._launcher.reap()
        os.close(self._pidfd)
