"""Where the states of views come from: one source for all views of one thing."""

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

from jupyter_mgpu.widgets.states import State

LIVE_POINTS = 400
"""Of each curve while it grows: twice as many pixels as most plots have, with the extremes kept."""


class Source(Protocol):
    """Something that views show. Every method may be called from any thread."""

    def state(self, limit: int) -> State:
        """Make its state, with at most so many points per curve."""

    def has_ended(self) -> bool:
        """Whether its state does not change any more; cheap."""

    def act(self, action: dict[str, Any]) -> str:
        """Do what a button asks for, and say what was done.

        Raises:
            MgpuError: If that is not possible; it says why.
        """


Found = TypeVar("Found", bound=Source)

_sources: "weakref.WeakValueDictionary[Hashable, Any]" = weakref.WeakValueDictionary()
_lock = threading.Lock()


def shared(key: Hashable, make: Callable[[], Found]) -> Found:
    """Return the source of one thing, made if no view has it yet.

    Args:
        key: The thing; it must live as long as its source is used.
        make: Makes the source.
    """
    with _lock:
        found: Found | None = _sources.get(key)
        if found is None:
            found = _sources[key] = make()
        return found
