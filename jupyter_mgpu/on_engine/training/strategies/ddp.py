"""Data-parallel training: every rank has the whole network and a share of each batch."""

import contextlib
import inspect
from typing import Any

from jupyter_mgpu.on_engine.training.step import Trial, refuse_unused
from jupyter_mgpu.on_engine.training.strategies.strategy import Strategy


class DataParallel(Strategy):
    """torch's DistributedDataParallel: gradients are averaged while they are computed."""

    def begin(self, trial: Trial) -> None:
        """Let gradients be exchanged from here on; harmless when it has been called before.

        Raises:
            ValueError: If a parameter has no gradient: the ranks would wait for it.
        """
        if self.module is not self.net:
            return
        from torch.nn.parallel import DistributedDataParallel

        may_be_unused = self._options.find_unused_parameters
        if not may_be_unused:
            refuse_unused(trial())
        self.module = DistributedDataParallel(
            self.net,
            process_group=self._ranks.group,
            find_unused_parameters=may_be_unused,
            **_own_buffers(),
        )
        if not may_be_unused:
            # After its first pass it packs the gradients anew, and then sums round differently:
            # a training that is resumed would differ in the last bit.
            trial()

    def unsynced(self) -> contextlib.AbstractContextManager[None]:
        """Keep gradients on this rank, as more of them will be added."""
        found: contextlib.AbstractContextManager[None] = self.module.no_sync()
        return found

    def exchange_s(self, num_steps: int) -> float:
        """Tell how long the exchange between ranks has taken, beyond what ran beside it."""
        if self.module is self.net:
            return 0.0
        found = self.module._get_ddp_logging_data()  # noqa: SLF001 - documented for users
        exposed = found.get("avg_backward_comm_time", 0) - found.get(
            "avg_backward_compute_comm_overlap_time", 0
        )
        return num_steps * max(0.0, float(exposed)) / 1e9 + self._ranks.waited.seconds


def _own_buffers() -> dict[str, Any]:
    """Let each rank keep its buffers: `SharedStatistics` makes those equal that should be."""
    from torch.nn.parallel import DistributedDataParallel

    known = inspect.signature(DistributedDataParallel).parameters
    return {
        "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False
    }
