"""What a cell needs sent, decided before any rank starts; nothing counts as sent until it was."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from jupyter_mgpu.packing.contents import Content
from jupyter_mgpu.packing.frames import Frame
from jupyter_mgpu.sending.pack_names import PackedNames
from jupyter_mgpu.sending.rank_state import Sent


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What goes to one rank.

    Attributes:
        sent: By name, what the rank has of the kernel's once it received the frames.
        packed: The frames; None where nothing needs to be sent.
    """

    sent: dict[str, Sent]
    packed: PackedNames | None


@dataclass(slots=True)
class Plan:
    """What a cell needs sent.

    Attributes:
        ranks: What goes to each rank.
        lines: What to tell the user, in dim text.
    """

    ranks: dict[int, RankPlan]
    lines: tuple[str, ...] = ()
    _commit: Callable[[int, dict[str, Sent], dict[int, Content]], None] = field(
        default=lambda *_: None, repr=False
    )
    _repack: Callable[[int, Collection[str], Sequence[int]], PackedNames] | None = field(
        default=None, repr=False
    )

    _ran: Callable[[int, dict[str, Any]], None] = field(default=lambda *_: None, repr=False)

    @property
    def frames(self) -> dict[int, list[Frame]]:
        """The frames of each rank; empty where nothing is sent. Equal needs share one list."""
        return {
            rank: plan.packed.frames if plan.packed else [] for rank, plan in self.ranks.items()
        }

    def take_frames(self) -> dict[int, list[Frame]]:
        """Return `frames`, and keep none of them: they must not live as long as the cell."""
        frames = self.frames
        for rank, plan in self.ranks.items():
            if plan.packed is not None:
                self.ranks[rank] = RankPlan(plan.sent, PackedNames([], plan.packed.contents))
        return frames

    def commit(self, rank: int) -> None:
        """Note that a rank has received its frames."""
        plan = self.ranks[rank]
        if plan.packed is not None:
            self._commit(rank, plan.sent, plan.packed.contents)

    def ran(self, rank: int, report: dict[str, Any]) -> None:
        """Note that the cell ended on a rank, well or not.

        Args:
            rank: The rank.
            report: What `EngineNamespace.after_cell` returned there; it tells whether the rank
                had received its frames.
        """
        if report.get("received", True):
            self.commit(rank)
        self._ran(rank, report)

    def repack(self, rank: int, missing: Sequence[int]) -> list[Frame]:
        """Pack again for a rank that no longer has what the frames refer to.

        Args:
            rank: The rank.
            missing: The handles it named.

        Returns:
            Frames that do not refer to them.
        """
        plan = self.ranks[rank]
        if self._repack is None:
            return []
        packed = self._repack(rank, plan.sent, missing)
        self.ranks[rank] = RankPlan(plan.sent, PackedNames([], packed.contents))
        return packed.frames
