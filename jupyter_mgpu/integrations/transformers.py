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
        control.should_training_stop |= _any_rank(args, wants=stop_requested())

    def on_epoch_end(self, args: Any, _state: Any, control: Any, **_: Any) -> None:
        """End after an epoch where that was asked for."""
        control.should_training_stop |= _any_rank(args, wants=stop_requested(after="epoch"))


def _any_rank(args: Any, *, wants: bool) -> bool:
    return bool(comm.all_reduce(float(wants), op="max")) if args.world_size > 1 else wants
