"""Which layers each rank gets, the same on all of them; and what cannot be pipelined."""

import contextlib
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, IterableDataset, default_collate

from jupyter_mgpu.on_engine import seeds
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.strategies.pipelining.cuts import (
    cuts_by_size,
    named_cuts,
    too_few,
)
from jupyter_mgpu.on_engine.training.strategies.pipelining.links import (
    Link,
    links_of,
    skeleton_of,
)
from jupyter_mgpu.on_engine.training.strategies.pipelining.sizes import sizes_of
from jupyter_mgpu.on_engine.training.strategies.pipelining.tracing import UncuttableError
from jupyter_mgpu.on_engine.training.trees import as_tensors, is_indexable, map_leaves

PARTS_PER_RANK = 2
"""At least as many microbatches as ranks keep all of them busy; more leave less waiting."""


def demand_stages(net: nn.Module, options: TrainingOptions, num_stages: int) -> None:
    """Refuse a network that cannot be cut into stages as asked for.

    Raises:
        ValueError: It says why.
    """
    links = _links(skeleton_of(net), num_stages)
    if options.pipeline_splits is not None:
        named_cuts(links, options.pipeline_splits, num_stages)


def stages_of(
    net: nn.Module, data: Any, options: TrainingOptions, ranks: Ranks
) -> list[list[Link]]:
    """Return the links of each rank's stage; all ranks call it.

    Raises:
        ValueError: If the network cannot be cut as asked for.
    """
    skeleton = skeleton_of(net)
    links = _links(skeleton, ranks.world_size)
    if options.pipeline_splits is not None:
        cuts = named_cuts(links, options.pipeline_splits, ranks.world_size)
    else:
        example = _example(data) if ranks.is_first else None
        sizes = sizes_of(skeleton, links, example, options.batch_size)
        # As the first rank sees it: others need not load a sample.
        sizes = ranks.gather(sizes if ranks.is_first else None)[0]
        cuts = cuts_by_size(sizes, ranks.world_size)
    bounds = zip([0, *cuts], [*cuts, len(links)], strict=True)
    return [links[begin:end] for begin, end in bounds]


def _links(skeleton: nn.Module, num_stages: int) -> list[Link]:
    try:
        links = links_of(skeleton)
    except UncuttableError as error:
        raise ValueError(
            f"strategy is 'pipeline', but {error}. The network must call its children one after "
            "the other; 'ddp' and 'fsdp' train any network."
        ) from error
    if len(links) < num_stages:
        raise ValueError(too_few(len(links), num_stages))
    return links


def _example(data: Any) -> Any:
    """Return inputs of a few samples, or None where none can be had without side effects."""
    with contextlib.suppress(Exception), seeds.preserved():
        if is_indexable(data):
            inputs = data[0] if isinstance(data, tuple | list) else data
            return as_tensors(map_leaves(lambda leaf: leaf[:1], inputs))
        is_loader = isinstance(data, DataLoader)
        dataset = data.dataset if is_loader else data
        if not isinstance(dataset, IterableDataset):
            collate = data.collate_fn if is_loader else default_collate
            return collate([dataset[0]])[0]
    return None


# --- microbatches ------------------------------------------------------------------------


def num_parts(options: TrainingOptions, num_stages: int) -> int:
    """Return into how many microbatches a batch is cut: `accumulate`, or one or two per rank."""
    if options.accumulate > 1:
        return options.accumulate
    most = PARTS_PER_RANK * num_stages
    equal = [n for n in range(most, num_stages - 1, -1) if options.batch_size % n == 0]
    return equal[0] if equal else most


def refuse_statistics(net: nn.Module, options: TrainingOptions) -> None:
    """Refuse layers that look at all samples of a batch, where they would see others than alone.

    Raises:
        ValueError: It names one of them.
    """
    names = statistics_of(net)
    if not names:
        return
    if options.accumulate == 1:
        raise ValueError(
            f"strategy is 'pipeline', but {names[0]!r} looks at whole batches, while each batch is "
            "computed in microbatches. Say how many by accumulate=, and they are normalized one "
            "by one, as on one device; or take a layer such as GroupNorm."
        )
    if options.mini_batch_size is not None and options.mini_batch_size % options.accumulate:
        raise ValueError(unequal(names[0], options.mini_batch_size, options.accumulate))


def statistics_of(net: nn.Module) -> list[str]:
    """Name the layers whose outputs or buffers depend on all samples that come together."""
    kinds = nn.modules.batchnorm
    return [
        name
        for name, layer in net.named_modules()
        if isinstance(layer, kinds._BatchNorm)  # noqa: SLF001 - what all kinds of it share
        or (isinstance(layer, kinds._NormBase) and layer.track_running_stats)  # noqa: SLF001
    ]


def unequal(name: str, num_rows: int, num_microbatches: int) -> str:
    """Say that a batch cannot be cut into equal microbatches."""
    return (
        f"strategy is 'pipeline', but {name!r} looks at all samples of a microbatch, and a batch "
        f"of {num_rows} cannot be cut into {num_microbatches} equal ones. Choose accumulate= so "
        "that it divides each batch, and leave out a partial last one by drop_last=True."
    )
