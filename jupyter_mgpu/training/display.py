"""What a training shows in its cell: a live plot if that was asked for, else a bar and a table."""

from typing import Any

from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.output import view_door
from jupyter_mgpu.output.publisher import Publisher
from jupyter_mgpu.output.training_view import TrainingView
from jupyter_mgpu.output.view_door import TrainingDisplay


def open_display(
    cell: Publisher, name: str, environment: str, options: TrainingOptions, controls: Any
) -> TrainingDisplay:
    """Begin to show a training.

    Args:
        cell: Where.
        name: What it is called.
        environment: What it runs on, in words.
        options: How it trains.
        controls: What can be asked of it: its future, or what takes `request_stop(after)`.
    """
    wants_plot = options.plots == "training-progress"
    if wants_plot:
        shown = view_door.open_training(
            cell,
            name=name,
            environment=environment,
            controls=controls,
            epochs=options.max_epochs,
            # Else a DataLoader's own may count, and the ranks may multiply it.
            batch_size=options.mini_batch_size if options.scale is None else None,
        )
        if shown is not None:
            return shown
    return TrainingView(cell, name, environment, is_quiet=not (options.verbose or wants_plot))
