"""`train`: one network, on one device or on many."""

from typing import Any

from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.on_engine import context
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.training import here
from jupyter_mgpu.training.on_pool import PoolTraining
from jupyter_mgpu.training.places import choose_ranks


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

    The network that is given is not changed: a trained copy is returned. For any number of ranks
    the batches, the losses and the result are those of one device, up to rounding.

    The first Stop ends the training after the current step and returns the network as it is; a
    second one interrupts.

    Args:
        net: A `torch.nn.Module`.
        data: `(inputs, targets)`, tensors or arrays of equal length; a Dataset whose samples are
            such pairs; or a DataLoader, whose settings are taken over but for its batch size.
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
    if options.execution_environment in ("auto", "cpu", "gpu"):
        if wait or context.current() is not None:
            return here.train(net, data, loss, options, name)
        return here.train_in_background(net, data, loss, options, name, pool)
    if context.current() is not None:
        raise MgpuError(
            f"execution_environment is {options.execution_environment!r}, but this runs on an "
            "engine, which has no pool of its own. Use 'gpu' or 'auto' there."
        )
    training = PoolTraining(choose_ranks(pool, options), net, data, loss, options, name)
    return training.run() if wait else training.start()


def _check(net: Any, loss: Any) -> None:
    if not hasattr(net, "state_dict") or not callable(net):
        raise TypeError(f"A torch.nn.Module was expected, but net is a {type(net).__name__}.")
    if not callable(loss):
        raise TypeError(
            f"A function of output and target was expected, but loss is a {type(loss).__name__}."
        )
