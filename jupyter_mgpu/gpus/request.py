"""What a pool asks for, and how many GPUs and engines that makes."""

from dataclasses import dataclass
from typing import Literal

from jupyter_mgpu.gpus.usage import Notebook


@dataclass(frozen=True, slots=True)
class Request:
    """What a pool asks for.

    Attributes:
        n: How many engines: exactly, from-to, or None for one per free GPU.
        gpus: What the user typed after `--gpus`; None leaves the choice to us.
        among: The devices to choose from, as in `gpus`; None for all.
        per_gpu: Engines that share each GPU.
        gpus_per_engine: GPUs that each engine gets.
        share: Take GPUs that others use as well.
        visible: "own" shows an engine its own GPUs, "pool" all GPUs of the pool in rank order.
        pool: The pool's name, for the lease.
        kernel: The notebook, where another process chooses for it.
        first_rank: The first new rank, for a pool that grows.
        cluster: The cluster that its engines run on; None for this machine.
    """

    n: int | tuple[int, int] | None = None
    gpus: str | None = None
    among: str | None = None
    per_gpu: int = 1
    gpus_per_engine: int = 1
    share: bool = False
    visible: Literal["own", "pool"] = "own"
    pool: str = "pool"
    notebook: str | None = None
    kernel_id: str | None = None
    kernel: Notebook | None = None
    first_rank: int = 0
    cluster: str | None = None

    @property
    def smallest(self) -> int:
        """The fewest engines that will do."""
        if self.n is None:
            return 1
        return self.n[0] if isinstance(self.n, tuple) else self.n

    @property
    def largest(self) -> int | None:
        """The most engines wanted; None for as many as there are free GPUs."""
        return self.n[1] if isinstance(self.n, tuple) else self.n

    def num_gpus(self, num_engines: int) -> int:
        """Count the GPUs that so many engines need."""
        return -(-num_engines // self.per_gpu) * self.gpus_per_engine

    def num_engines(self, num_gpus: int) -> int:
        """Count the engines that so many GPUs can take."""
        return num_gpus // self.gpus_per_engine * self.per_gpu
