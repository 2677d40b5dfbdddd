"""Which options a strategy refuses, and why; known before anything runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Rule = tuple[Callable[[Any], bool], str]
"""Tells whether options break it; and the reason, to which "strategy is ..., but" leads."""

_SPLITS: Rule = (
    lambda options: options.pipeline_splits is not None,
    "pipeline_splits was given, by which only 'pipeline' cuts a network. Leave one of them out.",
)


def _is_equal(load: Any) -> bool:
    """Tell whether a worker_load lets all ranks that compute do the same."""
    if isinstance(load, str):
        return False
    return not isinstance(load, Sequence) or len({weight for weight in load if weight}) <= 1


_ONE_DEVICE: Rule = (
    lambda options: options.execution_environment in ("auto", "cpu", "gpu"),
    (
        "execution_environment is one device, and there is nobody to share the network with. Set "
        "it to 'multi-gpu' or 'parallel'."
    ),
)

_PIPELINE: Sequence[Rule] = (
    _ONE_DEVICE,
    (
        lambda options: options.forward is not None,
        "forward= runs a whole network, which no rank has. Let batches be (input, target).",
    ),
    (
        lambda options: options.compile,
        "compile=True compiles a whole network, which no rank has. Leave it out.",
    ),
    (
        lambda options: options.sync_batch_norm,
        "with sync_batch_norm=True ranks share a batch, while here each has other layers.",
    ),
    (
        lambda options: options.scale is not None,
        "scale='linear' counts ranks that share a batch. Choose mini_batch_size, learning_rate.",
    ),
    (
        lambda options: options.precision == "fp16",
        "the scaler of 'fp16' must see the gradients of all layers at once. Choose 'bf16'.",
    ),
    (
        lambda options: not _is_equal(options.worker_load),
        "worker_load divides batches. Give a number of ranks, or pipeline_splits for their work.",
    ),
)

RULES: Mapping[str, Sequence[Rule]] = {
    "ddp": (_SPLITS,),
    "fsdp": (
        _SPLITS,
        _ONE_DEVICE,
        (
            lambda options: options.worker_load == "auto",
            (
                "worker_load='auto' measures the whole network on each rank alone, where it may "
                "not fit. Give a number of ranks, or one weight per rank."
            ),
        ),
        (
            lambda options: options.find_unused_parameters,
            (
                "find_unused_parameters lets each rank leave out other layers, while here all "
                "ranks gather each layer together. Freeze what is never used by "
                "requires_grad_(False)."
            ),
        ),
        (
            lambda options: options.backend == "mpi",
            "mpi cannot divide sums of gradients. Leave backend out: then it is nccl or gloo.",
        ),
    ),
    "pipeline": _PIPELINE,
}


def check(options: Any) -> None:
    """Refuse options that do not fit the strategy.

    Raises:
        ValueError: It says what was asked, why it cannot be, and what to do.
    """
    name = options.strategy
    if name not in RULES:
        raise ValueError(f"strategy is {name!r}, but it may be: {', '.join(map(repr, RULES))}.")
    for is_broken, reason in RULES[name]:
        if is_broken(options):
            raise ValueError(f"strategy is {name!r}, but {reason}")
