"""What a strategy asks of a network; known before anything is sent."""

from typing import Any

from jupyter_mgpu.on_engine.training.options import TrainingOptions


def check(net: Any, options: TrainingOptions, num_ranks: int, *, is_trained: bool = True) -> None:
    """Refuse a network that does not fit a strategy.

    Args:
        net: The network.
        options: With the strategy.
        num_ranks: Between how many it is shared; more than one.
        is_trained: Whether gradients are computed, too.

    Raises:
        ValueError: It says what there is, and what to do.
    """
    if options.strategy != "ddp":
        _demand_sizes(net, options.strategy)
    if options.strategy == "fsdp":
        _demand_divisible(net)
        if is_trained:
            _demand_one_type(net)
    elif options.strategy == "pipeline":
        from jupyter_mgpu.on_engine.training.strategies.pipelining import plan

        plan.demand_stages(net, options, num_ranks)
        if is_trained:
            plan.refuse_statistics(net, options)


def _demand_sizes(net: Any, strategy: str) -> None:
    found = net.named_parameters()
    unknown = [name for name, one in found if type(one).__name__ == "UninitializedParameter"]
    if unknown:
        raise ValueError(
            f"strategy is {strategy!r}, but the size of {unknown[0]!r} is not known yet. Call the "
            "network once on a batch before."
        )


def _demand_divisible(net: Any) -> None:
    found = list(net.named_parameters())
    scalars = [name for name, one in found if not one.dim()]
    if scalars:
        raise ValueError(
            f"strategy is 'fsdp', but the parameter {scalars[0]!r} has no dimension that could be "
            "divided. Give it the shape (1,)."
        )


def _demand_one_type(net: Any) -> None:
    kinds = {one.dtype: name for name, one in net.named_parameters() if one.requires_grad}
    if not kinds:
        raise ValueError("The network has no parameters that can be trained.")
    if len(kinds) > 1:
        (kind, name), (other, other_name) = list(kinds.items())[:2]
        raise ValueError(
            f"strategy is 'fsdp', which sends the gradients of layers together, but {name!r} is "
            f"{_short(kind)} and {other_name!r} is {_short(other)}. Let them be of one type, and "
            "use precision='bf16' to compute in a lower one."
        )


def _short(kind: Any) -> str:
    return str(kind).removeprefix("torch.")
