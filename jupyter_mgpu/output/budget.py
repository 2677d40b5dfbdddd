"""Limits what all ranks of a cell send to the front end together."""

import json
from typing import Any

MESSAGES_PER_S = 40.0
BYTES_PER_S = 150_000.0
ENVELOPE_BYTES = 700
"""Headers of one Jupyter message."""


class Budget:
    """A token bucket of messages and bytes; a big message may put it into debt.

    Args:
        now: The time on the monotonic clock.
    """

    def __init__(self, now: float) -> None:
        self._at = now
        # A fifth of a second's worth: the start is prompt, and no second exceeds the limits.
        self._messages = MESSAGES_PER_S / 5
        self._bytes = BYTES_PER_S / 5

    def refill(self, now: float) -> None:
        """Add what the time since the last call is worth."""
        passed, self._at = now - self._at, now
        self._messages = min(self._messages + passed * MESSAGES_PER_S, MESSAGES_PER_S / 5)
        self._bytes = min(self._bytes + passed * BYTES_PER_S, BYTES_PER_S / 5)

    def allows(self) -> bool:
        """Tell whether one more message may go out now."""
        return self._messages >= 1 and self._bytes > 0

    def spend(self, content: Any) -> None:
        """Count a message."""
        self._messages -= 1
        self._bytes -= size_of(content) + ENVELOPE_BYTES


def size_of(content: Any) -> int:
    """Estimate how many bytes a content has on the wire."""
    if isinstance(content, str):
        return len(content)
    if isinstance(content, dict):
        return sum(size_of(value) for value in content.values())
    return len(json.dumps(content, default=str))
