"""Messages between the owner and its engines: a JSON header and binary frames."""

import json
from collections.abc import Sequence
from typing import Any

Header = dict[str, Any]
Frame = bytes | memoryview

_encoder = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=str)


def encode(header: Header, frames: Sequence[Frame] = ()) -> list[Frame]:
    """Turn a message into the parts that a socket sends."""
    return [_encoder.encode(header).encode("utf-8", "surrogatepass"), *frames]


def decode(parts: Sequence[Frame]) -> tuple[Header, list[Frame]]:
    """Turn received parts into a header and its frames.

    Raises:
        ValueError: If the first part is no JSON object.
    """
    header = json.loads(bytes(parts[0]))
    if not isinstance(header, dict):
        raise ValueError("A message's header must be a JSON object.")  # noqa: TRY004
    return header, list(parts[1:])
