"""How a process reaches the queues: those of the kernel are its own, an engine asks for them."""

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, Protocol

from jupyter_mgpu import exchange
from jupyter_mgpu.exchange import queues
from jupyter_mgpu.exchange.queues import QueueOptions
from jupyter_mgpu.on_engine import context
from jupyter_mgpu.packing import Frame, Place


class Port(Protocol):
    """What a DataQueue needs of its process."""

    @property
    def place(self) -> Place | None:
        """What puts large items into shared memory."""

    def put(self, frames: Sequence[Frame], timeout: float | None) -> str:
        """Put an item; returns how that ended."""

    def get(self, timeout: float | None) -> tuple[str, Sequence[Frame]]:
        """Get an item; returns how that ended, and its frames."""

    def size(self) -> int:
        """Count the items that wait."""

    def close(self) -> None:
        """Close the queue."""


class KernelPort:
    """A queue in the kernel.

    Args:
        options: Which.
    """

    def __init__(self, options: QueueOptions) -> None:
        self._options = options

    @property
    def place(self) -> Place | None:
        """What puts large items into shared memory."""
        return exchange.place()

    def put(self, frames: Sequence[Frame], timeout: float | None) -> str:
        """Put an item; returns how that ended."""
        return queues.put(self._options, frames, timeout)

    def get(self, timeout: float | None) -> tuple[str, Sequence[Frame]]:
        """Get an item; returns how that ended, and its frames."""
        return queues.get(self._options, timeout)

    def size(self) -> int:
        """Count the items that wait."""
        return queues.size(self._options)

    def close(self) -> None:
        """Close the queue."""
        queues.close(self._options)


class EnginePort:
    """A queue of the kernel on an engine.

    Args:
        options: Which.
    """

    def __init__(self, options: QueueOptions) -> None:
        self._header = {"to": "queue", "queue": astuple(options)}

    @property
    def place(self) -> Place | None:
        """What puts large items into shared memory."""
        return context.require().place

    def put(self, frames: Sequence[Frame], timeout: float | None) -> str:
        """Put an item; returns how that ended."""
        return str(self._ask("put", timeout, frames).header["status"])

    def get(self, timeout: float | None) -> tuple[str, Sequence[Frame]]:
        """Get an item; returns how that ended, and its frames."""
        answer = self._ask("get", timeout)
        return answer.header["status"], answer.frames

    def size(self) -> int:
        """Count the items that wait."""
        return int(self._ask("size").header["size"])

    def close(self) -> None:
        """Close the queue."""
        self._ask("close")

    def _ask(self, do: str, timeout: float | None = None, frames: Sequence[Frame] = ()) -> Any:
        waits = timeout is None or timeout > 0
        header = {**self._header, "do": do, "waits": waits}
        # Without a wait the answer comes at once.
        return context.require().requests.ask(header, frames, timeout=timeout if waits else None)
