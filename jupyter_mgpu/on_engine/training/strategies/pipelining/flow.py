"""Lets microbatches flow through the ranks' stages, by torch's schedules.

torch fixes the shapes of what is sent when a schedule is made, so there is one for each number and
size of microbatches. It could also find the shapes itself, but on numbers that nobody has set.
"""

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.strategies.pipelining.stage import Finish, Stage, Stopwatch
from jupyter_mgpu.on_engine.training.trees import leaves_of, map_leaves

Shape = tuple[tuple[int, ...], Any, bool]
"""Of a tensor that is sent: its sizes, its type, and whether its gradient comes back."""


class Flow:
    """One rank's end of the pipeline.

    Args:
        stage: What this rank computes.
        net: With it.
        ranks: Who trains.
        schedule: "gpipe" or "1f1b".
    """

    def __init__(self, stage: Stage, net: Any, ranks: Ranks, schedule: str) -> None:
        self._stage = stage
        self._net = net
        self._ranks = ranks
        self._schedule = schedule
        self._made: dict[tuple[int, int, bool], Any] = {}
        self._expected: dict[tuple[int, int, bool], Any] = {}
        self.computing = Stopwatch(ranks.device)
        self.flowing = Stopwatch(ranks.device)

    @property
    def is_first(self) -> bool:
        """Whether this rank takes the inputs."""
        return self._ranks.rank == 0

    @property
    def is_last(self) -> bool:
        """Whether this rank has the outputs."""
        return self._ranks.rank == self._ranks.world_size - 1

    def run(
        self,
        inputs: Sequence[Any] | None,
        finish: Finish,
        num_parts: int,
        rows: int,
        *,
        is_trained: bool,
    ) -> None:
        """Compute a batch, and its gradients if it is trained on; all ranks call it.

        Args:
            inputs: Of each microbatch, all of one shape; used on the first rank.
            finish: Takes outputs, on the last rank.
            num_parts: How many microbatches there are.
            rows: Samples in each of them.
            is_trained: Whether gradients are computed.

        Raises:
            ValueError: If the inputs have not the shape that they had before.
            Exception: What an own layer, the loss or a metric raises.
        """
        key = (num_parts, rows, is_trained)
        if self.is_first and inputs is not None:
            self._demand_equal_shapes(key, inputs)
        if key not in self._made:
            example = inputs[0] if self.is_first and inputs is not None else None
            shapes = self._shapes(example, is_trained=is_trained)
            self._made[key] = self._new_schedule(num_parts, shapes, is_trained=is_trained)
        self._stage.begin(inputs if self.is_first else None, finish if self.is_last else None)
        numbers = torch.arange(num_parts)
        with self._own_errors(), self.flowing.running():
            self._made[key].step(
                *([numbers] if self.is_first else []),
                **({"target": numbers} if self.is_last and is_trained else {}),
            )

    def output(self, inputs: Any, rows: int) -> Any:
        """Compute a batch at once, without gradients; its output is on the last rank."""
        found: list[Any] = [None]

        def finish(output: Any, number: int) -> torch.Tensor:
            # A copy: it may be what was received, where the next batch will be received, too.
            found[number] = map_leaves(_copied, output)
            return self._number()

        self.run([inputs], finish, 1, rows, is_trained=False)
        return found[0]

    def _number(self) -> torch.Tensor:
        """Return what the last stage ends in: a loss, or nothing of interest."""
        return torch.zeros(1, dtype=torch.float64, device=self._ranks.device)

    @contextlib.contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError:
            if self._stage.failure is not None:
                raise self._stage.failure from None
            raise

    def _demand_equal_shapes(self, key: tuple[int, int, bool], inputs: Sequence[Any]) -> None:
        for one in inputs:
            found = [(tuple(leaf.shape), leaf.dtype) for leaf in leaves_of(one)]
            expected = self._expected.setdefault(key, found)
            if found != expected:
                raise ValueError(
                    f"Inputs of a microbatch have the shapes {_words(found)}, but those before had "
                    f"{_words(expected)}. With 'pipeline' all must have one shape: pad them."
                )

    def _shapes(self, example: Any, *, is_trained: bool) -> list[Shape]:
        """Find out, rank after rank, what each of them sends; leaves no trace."""
        shapes: list[Shape] = []
        value = example
        for rank in range(self._ranks.world_size - 1):
            found = None
            if rank == self._ranks.rank:
                found = self._shape_of_output(value, is_trained=is_trained)
            shapes.append(self._ranks.gather(found)[rank])
            if rank + 1 == self._ranks.rank:
                value = _of_shape(shapes[-1], self._ranks.device)
        return shapes

    def _shape_of_output(self, value: Any, *, is_trained: bool) -> Shape:
        own = map_leaves(_copied, value)  # a layer may change it in place
        self._stage.begin([own], None)
        with _no_trace(self._net, self._ranks.device), torch.set_grad_enabled(is_trained):
            output = self._stage(own)
        return (tuple(output.shape), output.dtype, output.requires_grad)

    def _new_schedule(self, num_parts: int, shapes: Sequence[Shape], *, is_trained: bool) -> Any:
        rank, device = self._ranks.rank, self._ranks.device
        number = torch.zeros(1, dtype=torch.int64)
        stage = _TimedStage(
            self._stage,
            rank,
            self._ranks.world_size,
            torch.device(device),
            input_args=number if self.is_first else _of_shape(shapes[rank - 1], device),
            output_args=self._number() if self.is_last else _of_shape(shapes[rank], device),
            group=self._ranks.group,
        )
        stage.watch = self.computing
        kind = ScheduleGPipe
        # torch refuses the other one where there are fewer microbatches than stages.
        if self._schedule == "1f1b" and is_trained and num_parts >= self._ranks.world_size:
            kind = Schedule1F1B
        return kind(stage, num_parts, _same if is_trained else None, **_unscaled(kind))


class _TimedStage(PipelineStage):  # type: ignore[misc] # torch is untyped here
    """Measures what is computed, so that the rest is waiting and exchange."""

    watch: Stopwatch

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self.watch.running():
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self.watch.running():
            return super().backward_one_chunk(*args, **kwargs)


def _unscaled(kind: type) -> dict[str, bool]:
    """Keep gradients as they are: a loss counts by its share of the batch already."""
    known = inspect.signature(kind).parameters
    return {"scale_grads": False} if "scale_grads" in known else {}


def _same(output: Any, number: Any) -> Any:  # noqa: ARG001 - torch gives a target
    """Let the output be the loss, which the last stage computes."""
    return output


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def _of_shape(shape: Shape, device: str) -> Any:
    sizes, dtype, has_gradient = shape
    return torch.zeros(sizes, dtype=dtype, device=device, requires_grad=has_gradient)


@contextlib.contextmanager
def _no_trace(net: Any, device: str) -> Iterator[None]:
    """Put buffers and random numbers back afterwards."""
    buffers = [(buffer, buffer.clone()) for buffer in net.buffers()]
    with torch.random.fork_rng([device] if device.startswith("cuda") else []):
        yield
    with torch.no_grad():
        for buffer, value in buffers:
            buffer.copy_(value)


def _words(found: Sequence[tuple[tuple[int, ...], Any]]) -> str:
    return ", ".join(f"{shape} of {dtype}" for shape, dtype in found)
