"""Makes one rank's end of a pipeline out of a network."""

from typing import Any

from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.on_engine.training.ranks import Ranks
from jupyter_mgpu.on_engine.training.setup import Precision
from jupyter_mgpu.on_engine.training.strategies.pipelining.flow import Flow
from jupyter_mgpu.on_engine.training.strategies.pipelining.holdings import Holding
from jupyter_mgpu.on_engine.training.strategies.pipelining.plan import stages_of
from jupyter_mgpu.on_engine.training.strategies.pipelining.stage import Stage


def assembled(
    net: Any, data: Any, options: TrainingOptions, ranks: Ranks
) -> tuple[Holding, Flow, list[str]]:
    """Cut a network into as many stages as there are ranks; all of them call it.

    Args:
        net: The network; it is changed in place: what other ranks compute loses its numbers.
        data: One sample of it shows how large outputs are.
        options: With the cuts and the schedule.
        ranks: Who computes.

    Returns:
        What this rank has, its end of the pipeline, and the children with which the stages begin.

    Raises:
        ValueError: If the network cannot be cut as asked for.
    """
    stages = stages_of(net, data, options, ranks)
    holding = Holding(net, stages, ranks.rank, ranks.device)
    begins = [links[0].name for links in stages]
    stage = Stage(
        net,
        [link.bound(net) for link in stages[ranks.rank]],
        Precision(options.precision, ranks.device),
        next(iter(begins[ranks.rank + 1 :]), None),
    )
    return holding, Flow(stage, net, ranks, options.pipeline_schedule), begins
