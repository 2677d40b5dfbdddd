"""Chooses the strategy of a training."""

from collections.abc import Mapping
from typing import Any

from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.strategies.ddp import DataParallel
from jupyter_mgpu.on_engine.training.strategies.fsdp import FullySharded
from jupyter_mgpu.on_engine.training.strategies.strategy import Strategy

STRATEGIES: Mapping[str, type[Strategy]] = {"ddp": DataParallel, "fsdp": FullySharded}


def make_strategy(net: Any, options: TrainingOptions, ranks: Ranks, data: Any = None) -> Strategy:
    """Make a rank's part of a network; one rank alone has all of it, whatever was asked for."""
    if ranks.is_alone:
        alone = Strategy(net, options, ranks)
        if options.strategy != "ddp":
            alone.note = f"strategy={options.strategy!r}: one rank trains, so it has all of it."
        return alone
    if options.strategy == "pipeline":  # all that it is made of needs torch
        from jupyter_mgpu.on_engine.training.strategies.pipeline import Pipeline

        return Pipeline(net, options, ranks, data)
    return STRATEGIES[options.strategy](net, options, ranks, data)
