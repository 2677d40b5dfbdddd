"""A callback for the Trainer of transformers."""

from typing import Any

from transformers import TrainerCallback

from jupyter_mgpu.on_engine import comm
from jupyter_mgpu.on_engine.context import report, stop_requested


class ReportCallback(TrainerCallback):
    """Reports what a Trainer logs, and ends it where the notebook asks to.

    Example:
        >>> Trainer(model, args, train_dataset=data, callbacks=[ReportCallback()])
    """

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
        """Report the numbers of a log."""
        if state.is_world_process_zero:
            numbers = {k: v for k, v in (logs or {}).items() if isinstance(v, int | float)}
            report(step=state.global_step, **numbers)

    def on_step_end(self, args: Any, _state: Any, control: Any, **_: Any) -> None:
        """Let all ranks end at the same step."""
        wants = float(stop_requested())
        if args.world_size > 1:
            wants = comm.all_reduce(wants, op="max")
        control.should_training_stop |= bool(wants)
