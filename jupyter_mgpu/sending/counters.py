"""Who bound a name last: one clock for the kernel and the engines, taken at the end of cells."""

from collections.abc import Callable
from typing import Any

from jupyter_mgpu.on_engine.namespace.bindings import Bindings
from jupyter_mgpu.on_engine.namespace.names import analyse


class Clock:
    """Counts the ends of cells, on whichever side."""

    def __init__(self) -> None:
        self.now = 0

    def tick(self) -> int:
        """Advance, and return the new time."""
        self.now += 1
        return self.now


class KernelCounters:
    """When each of the kernel's names was bound last.

    Args:
        user_ns: The kernel's namespace.
        clock: Shared with the engines' side.
        transform: IPython's `transform_cell`.
    """

    def __init__(
        self, user_ns: dict[str, Any], clock: Clock, transform: Callable[[str], str] | None
    ) -> None:
        self._bindings = Bindings(user_ns)
        self._clock = clock
        self._transform = transform
        self._bound: dict[str, int] = {}

    def cell_finished(self, source: str, *, failed: bool) -> None:
        """Note what a cell of the kernel bound and deleted."""
        cell = analyse(source, self._transform)
        rebound, deleted = self._bindings.changes(cell, failed=failed)
        if rebound:
            now = self._clock.tick()
            self._bound.update(dict.fromkeys(rebound, now))
        for name in deleted:
            self._bound.pop(name, None)

    def accept(self, name: str) -> None:
        """Take a name that was bound from the engines' values as not bound by the kernel."""
        self._bindings.see(name)

    def bound_at(self, name: str) -> int:
        """Return the time of a name's last binding; 0 where it is older than the counters."""
        return self._bound.get(name, 0)
