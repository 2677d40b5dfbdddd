"""A callback for Lightning's Trainer."""

from typing import Any

from lightning.pytorch import Callback, Trainer

from jupyter_mgpu.on_engine.context import report, stop_requested


class ReportCallback(Callback):
    """Reports what a Trainer logs, and ends it where the notebook asks to.

    Example:
        >>> Trainer(devices=1, num_nodes=world_size, callbacks=[ReportCallback()])
    """

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Report as often as the Trainer logs; all ranks end at the same step."""
        if trainer.global_step % trainer.log_every_n_steps == 0:
            self._report(trainer)
        self._stop_if_any_rank(trainer, wants=stop_requested())

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """End after an epoch where that was asked for."""
        self._stop_if_any_rank(trainer, wants=stop_requested(after="epoch"))

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        """Report what was measured on the validation data."""
        if not trainer.sanity_checking:
            self._report(trainer)

    def _report(self, trainer: Trainer) -> None:
        if trainer.is_global_zero and trainer.callback_metrics:
            report(step=trainer.global_step, **trainer.callback_metrics)

    def _stop_if_any_rank(self, trainer: Trainer, *, wants: bool) -> None:
        trainer.should_stop |= trainer.strategy.reduce_boolean_decision(wants, all=False)
