"""`predict` and `classify`: a network on data, in batches, here or on many ranks."""

from collections.abc import Sequence
from typing import Any

from jupyter_mgpu import packing
from jupyter_mgpu.client import pack_call
from jupyter_mgpu.gangs import Gang
from jupyter_mgpu.on_engine.training import strategy_demands
from jupyter_mgpu.on_engine.training.entry import device_here
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.prediction import (
    Outputs,
    joined,
    outputs_of,
    predict_on_rank,
)
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.output import failures, publisher
from jupyter_mgpu.output.cell_output import CellOutput
from jupyter_mgpu.output.progress_bar import ProgressBar
from jupyter_mgpu.owner.queue import Task
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.training.calls import prepare_call
from jupyter_mgpu.training.places import PoolPlace, choose_ranks, demand_net, is_here
from jupyter_mgpu.wire import Frame, Header


def predict(
    net: Any, data: Any, options: TrainingOptions | None = None, *, pool: Pool | None = None
) -> Any:
    """Compute a network's outputs for some data.

    The network is in evaluation mode for it and is not changed. Only a batch at a time is on a
    device; the outputs are on the CPU, in the data's order.

    Args:
        net: A `torch.nn.Module`.
        data: Inputs; or what `train` takes, whose targets are left out.
        options: Of these count execution_environment, mini_batch_size, worker_load, num_workers,
            precision, forward and strategy ("fsdp", "pipeline": a part of the network per rank).
        pool: Where "multi-gpu" and "parallel" compute; the current pool by default.

    Returns:
        What the network returns, for all samples: a tensor, or nested tuples and dicts of them.

    Raises:
        ValueError: If the network does not return one row per sample.

    Example:
        >>> scores = predict(net, images, TrainingOptions(execution_environment="multi-gpu"))
    """
    return _run(net, data, options or TrainingOptions(), pool, is_classified=False)


def classify(
    net: Any,
    data: Any,
    classes: Sequence[Any] | None = None,
    options: TrainingOptions | None = None,
    *,
    pool: Pool | None = None,
) -> Any:
    """Compute the most likely class of each sample: that of the network's largest output.

    Args:
        net: A `torch.nn.Module` that returns one score per class.
        data: As for `predict`.
        classes: The names of the classes, in the order of the scores.
        options: As for `predict`.
        pool: As for `predict`.

    Returns:
        A list of names; without `classes` a tensor of numbers from 0.

    Raises:
        ValueError: If the network does not return one row of scores per sample, or there are too
            few names.
    """
    found = _run(net, data, options or TrainingOptions(), pool, is_classified=True)
    if classes is None:
        return found
    numbers = found.tolist()
    if numbers and max(numbers) >= len(classes):
        raise ValueError(
            f"A sample is of class {max(numbers)}, counted from 0, but there are {len(classes)} "
            "names. Give one for each of the network's scores."
        )
    return [classes[number] for number in numbers]


def _run(
    net: Any, data: Any, options: TrainingOptions, pool: Pool | None, *, is_classified: bool
) -> Any:
    demand_net(net)
    if not is_here(options):
        place = choose_ranks(pool, options)
        if len(place.trainers) > 1:
            strategy_demands.check(net, options, len(place.trainers), is_trained=False)
        return joined(_on_pool(place, net, data, options, is_classified=is_classified))
    ranks = Ranks(0, (1.0,), device_here(options.execution_environment))
    bar = ProgressBar(publisher.capture(), f"predict {type(net).__name__}")
    done: tuple[int, int | None] = (0, None)

    def tell(num_done: int, total: int | None) -> None:
        nonlocal done
        done = (num_done, total)
        bar.update(*done)

    with failures.own_lines():
        outputs = outputs_of(net, data, options, ranks, tell, is_classified=is_classified)
    bar.finish(*done, 0)
    return joined([outputs])


def _on_pool(
    place: PoolPlace, net: Any, data: Any, options: TrainingOptions, *, is_classified: bool
) -> list[Outputs]:
    pool, cell = place.pool, publisher.capture()
    name = f"predict {type(net).__name__}"
    args = (net, data, options, place.trainers, place.loads, is_classified)
    frames = pack_call(predict_on_rank, args, {}, pool.owner.store.place)
    gang = _PredictionGang(pool, *prepare_call(pool, name, frames, cell), ProgressBar(cell, name))
    del frames, args
    gang.run()
    return [packing.unpack(gang.replies[rank][1]) for rank in place.trainers]


class _PredictionGang(Gang):
    """A gang whose first rank tells how far it is."""

    def __init__(self, pool: Pool, task: Task, output: CellOutput, bar: ProgressBar) -> None:
        super().__init__(pool, task, output, lambda *_: None)
        self._bar = bar
        self._done: tuple[int, int | None] = (0, None)

    def listen(self, header: Header, frames: list[Frame]) -> bool:
        """Take an event."""
        if header["op"] == "progress" and header["step"] is not None:
            self._done = (header["step"], header["total"])
            self._bar.update(*self._done)
        is_over = super().listen(header, frames)
        if is_over:
            step, total = self._done
            self._bar.finish(step, total, 0, "" if step == total or total is None else "ended")
        return is_over
