"""What a pool on other hosts is made of, before it is started."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jupyter_mgpu.leases import Claim
from jupyter_mgpu.owner.plans import EnginePlan


@dataclass(frozen=True, slots=True)
class FarPlan:
    """The engines of a pool, and where they meet.

    Attributes:
        engines: One plan per rank, in rank order.
        addresses: Where they reach this machine; of several, each engine tries which do.
        run_id: Unique among pools.
        sentences: What the user should be told.
        claims: The leases of engines on this machine, by rank.
        on_drop: Called if the pool does not start, to end what was opened for it.
        on_turn: Called in the owner's thread when engines that join a pool are about to start.
    """

    engines: tuple[EnginePlan, ...]
    addresses: tuple[str, ...]
    run_id: str
    sentences: tuple[str, ...] = ()
    claims: Mapping[int, Claim] = field(default_factory=dict)
    on_drop: Callable[[], None] = lambda: None
    on_turn: Callable[[], None] = lambda: None

    def drop(self) -> None:
        """Give everything back, because the pool does not start."""
        for claim in self.claims.values():
            claim.drop()
        self.on_drop()
