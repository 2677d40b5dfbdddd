"""Copies to a GPU that run beside its computations: pinned memory, and a stream of their own."""

import contextlib
from collections.abc import Iterator
from typing import Any

from jupyter_mgpu.on_engine.training.trees import leaves_of, map_leaves


def is_gpu(device: str) -> bool:
    """Tell whether data has to be copied to a GPU."""
    return device.startswith("cuda")


def pinned(batch: Any, device: str) -> Any:
    """Let a batch be in memory that a GPU can read while the host goes on."""
    if not is_gpu(device):
        return batch

    def pin(leaf: Any) -> Any:
        is_on_host = hasattr(leaf, "pin_memory") and leaf.device.type == "cpu"
        return leaf.pin_memory() if is_on_host else leaf

    return map_leaves(pin, batch)


class CopyStream:
    """A GPU's stream for copies; on a CPU there is nothing to wait for.

    Args:
        device: Where the data goes.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._stream: Any = None
        if is_gpu(device):
            import torch

            self._stream = torch.cuda.Stream(device)

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """Let what is copied within go by this stream."""
        if self._stream is None:
            yield
            return
        import torch

        with torch.cuda.stream(self._stream):
            yield

    def mark(self) -> Any:
        """Return what `wait` takes: the copies so far."""
        return self._stream.record_event() if self._stream is not None else None

    def wait(self, mark: Any, batches: Any) -> None:
        """Let the computations that follow begin when these batches are there.

        Args:
            mark: From after their copies.
            batches: Nested tensors; their memory stays theirs until it has been read.
        """
        if self._stream is None:
            return
        import torch

        current = torch.cuda.current_stream(self._device)
        current.wait_event(mark)
        for leaf in leaves_of(batches):
            if hasattr(leaf, "record_stream"):
                leaf.record_stream(current)
