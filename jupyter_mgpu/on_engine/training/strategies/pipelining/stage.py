"""The links of one rank, as a module that torch's pipeline calls with one microbatch at a time."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from jupyter_mgpu.on_engine.training.forward import types_told
from jupyter_mgpu.on_engine.training.setup import Precision

Finish = Callable[[Any, int], torch.Tensor]
"""Takes an output of the network and the number of its microbatch; returns (1,), float64."""


class Stage(nn.Module):  # type: ignore[misc] # torch is untyped here
    """Runs one rank's links.

    Args:
        net: With this rank's layers on its device.
        links: What this rank computes.
        precision: In which.
        following: The name of the child with which the next rank begins; None on the last one.

    Attributes:
        failure: What an own layer, the loss or a metric has raised.
    """

    def __init__(
        self, net: nn.Module, links: Sequence[Any], precision: Precision, following: str | None
    ) -> None:
        super().__init__()
        self._links = links
        self._net = [net]  # not a child: torch would look through it
        self._precision = precision
        self._following = following
        self._inputs: Sequence[Any] | None = None
        self._finish: Finish | None = None
        self._number = 0
        self.failure: Exception | None = None

    def begin(self, inputs: Sequence[Any] | None, finish: Finish | None) -> None:
        """Get ready for the microbatches of a batch.

        Args:
            inputs: Of each of them, on the first rank.
            finish: What comes after the network, on the last one.
        """
        self._inputs, self._finish, self._number, self.failure = inputs, finish, 0, None

    def forward(self, value: Any) -> Any:
        """Compute one microbatch; torch gives the first rank nothing but its number."""
        number, self._number = self._number, self._number + 1
        try:
            # A layer may change its input in place, which torch does not let it do with a leaf.
            value = value.clone() if self._inputs is None else self._inputs[number]
            with self._precision.autocast(), types_told(self._net[0], value):
                for link in self._links:
                    value = link(value)
            if self._finish is not None:
                return self._finish(value, number)
            return self._sendable(value)
        except Exception as error:
            self.failure = error  # torch raises another one in its place
            raise

    def _sendable(self, value: Any) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"The next rank begins with {self._following!r}, but a {type(value).__name__} goes "
                "on there, and only a tensor can be sent. Choose other pipeline_splits."
            )
        return value.contiguous()


class Stopwatch:
    """Adds up how long something runs on a device.

    Args:
        device: Where; on a GPU its own time counts.
    """

    def __init__(self, device: str) -> None:
        self._is_gpu = device.startswith("cuda")
        self._seconds = 0.0
        self._marks: list[tuple[Any, Any]] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Measure what is done meanwhile."""
        if not self._is_gpu:
            begun_s = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - begun_s
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self._marks.append((begin, end))
        while len(self._marks) > 1 and self._marks[0][1].query():
            self._settle()

    def _settle(self) -> None:
        begin, end = self._marks.pop(0)
        self._seconds += begin.elapsed_time(end) / 1000

    @property
    def seconds(self) -> float:
        """All of it; waits for the GPU."""
        while self._marks:
            self._marks[0][1].synchronize()
            self._settle()
        return self._seconds
