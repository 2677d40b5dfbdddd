"""`train`: one network, on one device or on many."""

from typing import Any

from jupyter_mgpu.futures import run_in_place
from jupyter_mgpu.on_engine import context
from jupyter_mgpu.on_engine.training import strategy_demands
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.training import here
from jupyter_mgpu.training.on_pool import PoolTraining
from jupyter_mgpu.training.places import choose_ranks, demand_net, is_here


def train(
    net: Any,
    data: Any,
    loss: Any,
    options: TrainingOptions | None = None,
    *,
    pool: Pool | None = None,
    wait: bool = True,
    name: str | None = None,
) -> Any:
    """Train a network; with another word in the options, on all GPUs.

    For a network that does not fit on one device there are the strategies "fsdp" and "pipeline".

    The network that is given is not changed: a trained copy is returned. For any number of ranks
    the batches, the losses and the result are those of one device, up to rounding.

    The first Stop ends the training after the current step and returns the network as it is; a
    second one interrupts.

    Args:
        net: A `torch.nn.Module`.
        data: `(inputs, targets)`, tensors or arrays of equal length; a Dataset whose samples are
            such pairs; or a DataLoader, whose settings are taken over.
        loss: `loss(output, target)`, the mean over the samples, such as `nn.CrossEntropyLoss()`.
        options: How; see `TrainingOptions`.
        pool: Where "multi-gpu" and "parallel" train; the current pool by default, started with
            one engine per GPU if there is none.
        wait: False returns a future of the same at once.
        name: What the training is called.

    Returns:
        The trained network, on the device where the given one is, and its `History`.

    Raises:
        TypeError: If the loss is not one number that depends on the network.
        ValueError: If options contradict each other or the data, or parameters are unused.
        FloatingPointError: If the loss becomes infinite or undefined; it names rank and step.
        MgpuError: If a GPU was asked for and there is none.

    Example:
        >>> options = TrainingOptions(execution_environment="multi-gpu", max_epochs=10)
        >>> net, history = train(net, (images, labels), nn.CrossEntropyLoss(), options)
    """
    options = options or TrainingOptions()
    _check(net, loss)
    name = name or f"train {type(net).__name__}"
    if is_here(options):
        if wait:
            return here.train(net, data, loss, options, name)
        if context.current() is not None:
            return run_in_place(here.train, (net, data, loss, options, name), {})
        return here.train_in_background(net, data, loss, options, name, pool)
    place = choose_ranks(pool, options)
    if len(place.trainers) > 1:
        strategy_demands.check(net, options, len(place.trainers))
    training = PoolTraining(place, net, data, loss, options, name)
    return training.run() if wait else training.start()


def _check(net: Any, loss: Any) -> None:
    demand_net(net)
    if isinstance(loss, type):
        raise TypeError(f"loss is the class {loss.__name__}. Make one: {loss.__name__}().")
    if not callable(loss):
        raise TypeError(
            f"A function of output and target was expected, but loss is a {type(loss).__name__}."
        )
