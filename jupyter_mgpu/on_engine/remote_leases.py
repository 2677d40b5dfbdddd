"""The leases of an engine on another host, which its guard takes there and holds.

They were chosen over the network, so another pool may have taken the GPUs before the engine starts.
"""

import time
from collections.abc import Sequence
from typing import TypedDict

from jupyter_mgpu.errors import GpuBusyError
from jupyter_mgpu.leases import Claim, Lease, LeaseBook

VARIABLE = "MGPU_CLAIM"
"""What an engine's guard has to lease, as JSON."""
PREDECESSOR_S = 5.0
"""So long the guard of the engine before may hold its lease after that has ended."""
_PAUSE_S = 0.05


class Wish(TypedDict):
    """What has to be leased.

    Attributes:
        gpu_uuids: The GPUs.
        rank: The engine's rank.
        pool: The pool's name.
        run_id: Unique among pools; stands where leases of a host's own notebooks name a kernel.
        notebook: The pool's notebook, if known.
        shares: Whether others may use the GPUs as well.
    """

    gpu_uuids: list[str]
    rank: int
    pool: str
    run_id: str
    notebook: str | None
    shares: bool


def take(wish: Wish) -> Claim:
    """Lease GPUs for an engine; the leases end with this process.

    Raises:
        GpuBusyError: If others have them; it names who.
    """
    book = LeaseBook()
    deadline_s = time.monotonic() + PREDECESSOR_S
    while True:
        with book.choosing():
            held = [lease for lease in book.live() if lease.gpu_uuid in wish["gpu_uuids"]]
            own = [lease for lease in held if lease.kernel_id == wish["run_id"]]
            before = [lease for lease in own if lease.rank == wish["rank"]]
            others = [lease for lease in held if lease not in own]
            if others and not wish["shares"]:
                raise GpuBusyError(_say(others), holders=[lease.pool for lease in others])
            if not before or time.monotonic() > deadline_s:
                return book.claim(
                    wish["gpu_uuids"],
                    rank=wish["rank"],
                    pool=wish["pool"],
                    notebook=wish["notebook"],
                    kernel_id=wish["run_id"],
                )
        time.sleep(_PAUSE_S)


def _say(leases: Sequence[Lease]) -> str:
    holders = "; ".join(
        f"{lease.gpu_uuid} is leased by rank {lease.rank} of pool {lease.pool!r} of {lease.user}"
        f" (process {lease.pid})"
        for lease in leases
    )
    return f"{holders}. Choose other GPUs, or share them with --share."
