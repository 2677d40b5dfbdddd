"""What must live as long as the packed form of an object does, since that only names it."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

_here = threading.local()


@contextlib.contextmanager
def collect() -> Iterator[list[Any]]:
    """Collect the companions of all that this thread packs in a with-block."""
    outer = getattr(_here, "found", None)
    found: list[Any] = []
    _here.found = found
    try:
        yield found
    finally:
        _here.found = outer


def accompany(companion: Any) -> None:
    """Let something live as long as what is being packed; called from a `__reduce__`."""
    found = getattr(_here, "found", None)
    if found is not None:
        found.append(companion)
