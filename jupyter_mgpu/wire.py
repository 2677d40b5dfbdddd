"""Messages between the owner and its engines: a JSON header and binary frames.

A small message is one part, so that it costs one call that gives up the GIL; frames of a large
one are parts of their own, which are not copied.
"""

import json
import struct
from collections.abc import Sequence
from typing import Any

Header = dict[str, Any]
Frame = bytes | memoryview

INLINE_BYTES = 64 * 1024
_SIZES = "~"  # the header's own field for the sizes of inlined frames
_PREFIX = struct.Struct("<I")

_encoder = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=str)
_decoder = json.JSONDecoder()


def encode(header: Header, frames: Sequence[Frame] = ()) -> list[Frame]:
    """Turn a message into the parts that a socket sends."""
    sizes = [len(frame) for frame in frames]
    if sum(sizes) > INLINE_BYTES:
        return [_head(header), *frames]
    return [b"".join((_head({**header, _SIZES: sizes} if sizes else header), *frames))]


def _head(header: Header) -> bytes:
    text = _encoder.encode(header).encode("utf-8", "surrogatepass")
    return _PREFIX.pack(len(text)) + text


def decode(parts: Sequence[Frame]) -> tuple[Header, list[Frame]]:
    """Turn received parts into a header and its frames.

    Raises:
        ValueError: If they are no message.
    """
    try:
        first = memoryview(parts[0])
        end = _PREFIX.size + _PREFIX.unpack_from(first)[0]
        header = _decoder.decode(str(first[_PREFIX.size : end], "utf-8", "surrogatepass"))
        sizes = header.pop(_SIZES, ())
    except (struct.error, IndexError, AttributeError) as error:
        raise ValueError("The parts are no message.") from error
    frames: list[Frame] = list(parts[1:])
    for size in sizes:
        frames.append(first[end : end + size])
        end += size
    return header, frames
