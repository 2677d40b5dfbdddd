"""What must live as long as the packed form of an object does, since that only names it."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

_here = threading.local()


@contextlib.contextmanager
def collect(destination: Any = None) -> Iterator[list[Any]]:
    """Collect the companions of all that this thread packs in a with-block.

    Args:
        destination: Where it will go, if that is known.
    """
    outer = getattr(_here, "found", None), destination_of_packed()
    found: list[Any] = []
    _here.found, _here.destination = found, destination
    try:
        yield found
    finally:
        _here.found, _here.destination = outer


def destination_of_packed() -> Any:
    """Return where goes what this thread packs now; None if that is unknown."""
    return getattr(_here, "destination", None)


def accompany(companion: Any) -> None:
    """Let something live as long as what is being packed; called from a `__reduce__`."""
    found = getattr(_here, "found", None)
    if found is not None:
        found.append(companion)
