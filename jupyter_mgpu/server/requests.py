"""What a client asks for, checked: ids, numbers and flags, never a path or a process."""

import json
from collections.abc import Callable, Mapping
from typing import Any

MOST_BODY_BYTES = 64 * 1024
MOST_ID = 200
MOST_RANKS = 4096
MOST_LOG_BYTES = 2**20


class RefusedError(Exception):
    """A request that is not done, and why, in words."""

    def __init__(self, status: int, words: str) -> None:
        self.status = status
        self.words = words
        super().__init__(words)


def read_body(body: bytes, allowed: Mapping[str, Callable[[str, Any], Any]]) -> dict[str, Any]:
    """Read the fields of a JSON object, each checked by its function.

    Args:
        body: What came; nothing reads as no fields.
        allowed: For each field that may be there what checks its name and value.

    Raises:
        RefusedError: If it is too large, or is anything else.
    """
    if len(body) > MOST_BODY_BYTES:
        raise RefusedError(
            413, f"The request has {len(body)} bytes; at most {MOST_BODY_BYTES} are taken."
        )
    try:
        fields = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise RefusedError(400, "The request's body must be a JSON object, such as {}.")
    unknown = sorted(set(fields) - set(allowed))
    if unknown:
        known = ", ".join(sorted(allowed)) or "no fields"
        raise RefusedError(
            400, f"The field {unknown[0][:MOST_ID]!r} is unknown. It takes: {known}."
        )
    return {name: allowed[name](name, value) for name, value in fields.items()}


def text(name: str, value: Any) -> str:
    """Take an id."""
    if not isinstance(value, str) or not 0 < len(value) <= MOST_ID:
        raise RefusedError(400, f"{name} must be a text of 1 to {MOST_ID} characters.")
    return value


def flag(name: str, value: Any) -> bool:
    """Take true or false."""
    if not isinstance(value, bool):
        raise RefusedError(400, f"{name} must be true or false.")
    return value


def after(name: str, value: Any) -> str:
    """Take when a task is to end."""
    if value not in ("step", "epoch"):
        raise RefusedError(400, f'{name} must be "step" or "epoch".')
    return str(value)


def ranks(name: str, value: Any) -> list[int]:
    """Take a list of ranks."""
    if not isinstance(value, list) or len(value) > MOST_RANKS:
        raise RefusedError(400, f"{name} must be a list of ranks, such as [0, 1].")
    for rank in value:
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < MOST_RANKS:
            raise RefusedError(400, f"{name} must be a list of ranks, such as [0, 1].")
    return value


def number(name: str, value: str, least: int, most: int) -> int:
    """Take a whole number of a query, within its limits.

    Raises:
        RefusedError: If it is none, or out of them.
    """
    try:
        found = int(value[:20])
    except ValueError:
        found = least - 1
    if not least <= found <= most:
        raise RefusedError(400, f"{name} must be a whole number from {least} to {most}.")
    return found
