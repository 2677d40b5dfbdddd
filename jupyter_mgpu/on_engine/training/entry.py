"""Where a training starts in a process: alone, or as one of several ranks."""

import copy
from dataclasses import replace
from typing import Any

from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.on_engine import context, seeds
from jupyter_mgpu.on_engine.training import telling
from jupyter_mgpu.on_engine.training.backends import check_backend, exchange_words
from jupyter_mgpu.on_engine.training.history import History
from jupyter_mgpu.on_engine.training.loop import Training
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks, group_of
from jupyter_mgpu.on_engine.training.sources import resolved
from jupyter_mgpu.on_engine.training.watching import Watcher

Trained = tuple[Any, History]
"""The network's state, or the network, and how it went."""


def train_alone(
    net: Any,
    data: Any,
    loss: Any,
    options: TrainingOptions,
    device: str,
    watcher: Watcher,
) -> tuple[Any, History]:
    """Train a copy of a network on one device, in this process.

    Returns:
        The trained copy, on the device where the given network was; and the history.
    """
    trained = copy.deepcopy(net)
    with seeds.preserved():  # the notebook's random numbers are its own
        training = Training(trained, data, loss, options, Ranks(0, (1.0,), device), watcher)
        trained.load_state_dict(training.run())
    return back_to(trained, net), training.history


def device_here(environment: str) -> str:
    """Choose the device of this process.

    Raises:
        MgpuError: If a GPU was asked for and there is none.
    """
    import torch

    engine = context.current()
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    if engine is not None:
        device = engine.device
    if environment == "cpu":
        return "cpu"
    if environment == "gpu" and device == "cpu":
        raise MgpuError(
            "execution_environment is 'gpu', but torch sees no GPU here. doctor() says why; 'auto' "
            "takes the CPU then."
        )
    return device


def back_to(trained: Any, net: Any) -> Any:
    """Move a network to where another one is."""
    first = next(net.parameters(), None)
    return trained if first is None else trained.to(first.device)


def train_on_rank(
    net: Any,
    data: Any,
    loss: Any,
    options: TrainingOptions,
    trainers: tuple[int, ...],
    loads: tuple[float, ...],
    run: str,
    returns_net: bool = False,  # noqa: FBT001, FBT002 - it travels by place
) -> Trained | None:
    """Train on this engine together with others; called on all ranks of the pool.

    Args:
        net: The network.
        data: What to train with.
        loss: Takes output and target.
        options: How.
        trainers: The ranks that train; the others only help to make the group.
        loads: How much of each batch every trainer takes; empty if that is to be measured.
        run: Names this training: when it starts again, it goes on from its own checkpoint.
        returns_net: Whether the network itself is returned, not its state alone.

    Returns:
        On the first trainer the state on the CPU, and the history; None on the others.
    """
    engine = context.require()
    whole = copy.deepcopy(net) if returns_net and engine.rank == trainers[0] else None
    if engine.rank in trainers:
        check_backend(options.backend, engine.device)
    with group_of(trainers, engine.world_size, options.backend) as group:
        if engine.rank not in trainers:
            return None
        place = trainers.index(engine.rank)
        equal = tuple(1 / len(trainers) for _ in trainers)
        ranks = Ranks(place, loads or equal, engine.device, group)
        if not loads:
            ranks = replace(ranks, loads=_measured_loads(net, data, loss, options, ranks))
        with seeds.preserved():
            trained = _train_as_one_of(net, data, loss, options, ranks, run, is_measured=not loads)
        if trained is not None and whole is not None:
            whole.load_state_dict(trained[0])
            return whole, trained[1]
        return trained


def _train_as_one_of(
    net: Any,
    data: Any,
    loss: Any,
    options: TrainingOptions,
    ranks: Ranks,
    run: str,
    *,
    is_measured: bool,
) -> Trained | None:
    # The others do not report: the ranks' numbers are the same.
    watcher = Watcher(
        report=context.report if ranks.is_first else Watcher().report,
        stop_requested=context.stop_requested,
        show=telling.send_row,
        progress=telling.Progress().tell,
        note=telling.send_note,
    )
    training = Training(net, data, loss, options, ranks, watcher, run)
    if not ranks.is_alone:
        training.history.exchange = words = exchange_words(ranks.group, ranks.device)
        if ranks.is_first:
            watcher.note(f"The ranks exchange by {words}.")
    if is_measured:
        shares = ", ".join(f"{load:.0%}" for load in ranks.loads)
        training.note(f"worker_load='auto': the ranks take {shares} of each batch, as measured.")
    state = training.run()
    return (_on_cpu(state), training.history) if ranks.is_first else None


def _measured_loads(
    net: Any, data: Any, loss: Any, options: TrainingOptions, ranks: Ranks
) -> tuple[float, ...]:
    """Let each rank take as much of a batch as it is quick."""
    size = max(1, resolved(options, data, ranks).batch_size // ranks.world_size)
    alone = replace(
        options,
        mini_batch_size=size,
        accumulate=1,
        scale=None,
        resume=None,
        compile=False,
        log_dir=None,
    )
    own = Ranks(0, (1.0,), ranks.device)
    trial = Training(copy.deepcopy(net), data, loss, alone, own, Watcher())
    speeds = [1 / seconds for seconds in ranks.gather(trial.measure())]
    return tuple(speed / sum(speeds) for speed in speeds)


def _on_cpu(state: dict[str, Any]) -> dict[str, Any]:
    return {k: v.cpu() if hasattr(v, "cpu") else v for k, v in state.items()}
