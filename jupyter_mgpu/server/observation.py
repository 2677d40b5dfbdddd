"""What is looked at while somebody watches: pools, through their owners, and GPUs."""

from collections.abc import Callable
from typing import Any

from jupyter_mgpu.server.document import Document
from jupyter_mgpu.server.gpus_watch import GpusWatch
from jupyter_mgpu.server.kernels import Kernels
from jupyter_mgpu.server.pools_watch import PoolsWatch


class Observation:
    """One look after another, until it is closed.

    Args:
        kernels: What the server knows of kernels.
        interval_s: Seconds between two samples of the GPUs.
        on_sample: Called, in the sampler's thread, with each new sample.
    """

    def __init__(self, kernels: Kernels, interval_s: float, on_sample: Callable[[], None]) -> None:
        self.pools = PoolsWatch(kernels)
        self.gpus = GpusWatch(interval_s, on_sample)

    async def fill(self, document: Document) -> None:
        """Look at everything, and put it into the document; takes a fraction of a second."""
        await self.pools.look()
        self.gpus.follow(self.pools.pools, self.pools.hosts)
        sections: dict[str, Any] = self.gpus.sections()
        gpu_ids = {row["label"]: row_id for row_id, row in sections["gpus"].items()}
        sections["telemetry"]["pools"] = {"trouble": self.pools.trouble}
        sections |= await self.pools.rows(gpu_ids)
        cpu = self.gpus.engine_cpu()
        for row in sections["engines"].values():
            row["cpu"] = cpu.get((row["host"], row["pid"]))
        for name, rows in sections.items():
            document.replace(name, rows)

    def close(self) -> None:
        """Look no more: the sampler ends, if nobody else wants it."""
        self.gpus.close()
        self.pools.close()
