"""What one rank has, as far as the kernel knows."""

from dataclasses import dataclass, field
from typing import Any

from jupyter_mgpu.packing.contents import Content
from jupyter_mgpu.packing.fingerprint import Fingerprint


@dataclass(frozen=True, slots=True)
class Origin:
    """The cell that assigned a name on the engines."""

    count: int
    first_line: str

    def __str__(self) -> str:
        place = f"cell [{self.count}]" if self.count else "the cell"
        return f"{place} ({self.first_line})" if self.first_line else place


@dataclass(frozen=True, slots=True)
class Sent:
    """The state of a kernel's name when it was sent; a None fingerprint cannot change inside."""

    bound_at: int
    fingerprint: Fingerprint | None


@dataclass(slots=True)
class RankState:
    """One rank's names.

    Attributes:
        sent: The kernel's names that were sent and not rebound there since.
        contents: By handle, the tensors and arrays that were sent, as they were then.
        bound: When the engine last bound a name of its own.
        origins: Which cell did so.
        lost: Names of its own that a replaced engine took along, and when they were bound.
        modules: Those of its names that are modules, by their full names: they are not lost, as
            they can be imported again.
    """

    sent: dict[str, Sent] = field(default_factory=dict)
    contents: dict[int, Content] = field(default_factory=dict)
    bound: dict[str, int] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)

    def ran(self, report: dict[str, Any], now: int, origin: Origin) -> None:
        """Note what a cell bound and deleted."""
        for name in report["rebound"]:
            self.bound[name] = now
            self.origins[name] = origin
            self.sent.pop(name, None)
            self.lost.pop(name, None)
            self.modules.pop(name, None)
        self.modules.update(report.get("modules", {}))
        for name in report["deleted"]:
            for known in (self.bound, self.origins, self.sent, self.lost, self.modules):
                known.pop(name, None)

    def replaced(self) -> "RankState":
        """Return the state of a new, empty engine in this one's place."""
        lost = {
            name: when
            for name, when in {**self.lost, **self.bound}.items()
            if name not in self.modules
        }
        return RankState(origins=dict(self.origins), lost=lost, modules=dict(self.modules))

    def copy(self) -> "RankState":
        """Return a copy that later events do not change."""
        return RankState(
            dict(self.sent),
            dict(self.contents),
            dict(self.bound),
            dict(self.origins),
            dict(self.lost),
            dict(self.modules),
        )
