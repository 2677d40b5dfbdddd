"""Many objects in few frames, each packed for itself.

Each object stands alone: what it holds is not shared with the objects that travel beside it, so it
does not matter which ones do. Numbers and texts need no pickle of their own.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_mgpu.packing.frames import Frame, Place, count_bytes, pack, unpack

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
_LONG = frozenset({str, bytes})
NUMBER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Parcel:
    """A packed object. What is plain is its own parcel."""

    frames: Sequence[Frame]


def wrap(
    obj: Any, *, copy: bool = True, labels: Sequence[str] = (), place: Place | None = None
) -> Any:
    """Pack an object, unless it is plain.

    Args:
        obj: Any object.
        copy: Whether the caller may change the object at once; see `pack`.
        labels: As in `pack`.
        place: As in `pack`.

    Raises:
        PackingError: If a part cannot be pickled; its path is told.
    """
    return obj if _is_plain(obj) else Parcel(pack(obj, copy=copy, labels=labels, place=place))


def _is_plain(obj: Any) -> bool:
    kind = type(obj)
    return kind in _PLAIN or (kind is tuple and _PLAIN.issuperset(map(type, obj)))


def unwrap(parcel: Any) -> Any:
    """Rebuild an object.

    Raises:
        PackingError: If it cannot be rebuilt; its own error is the cause.
    """
    return unpack(parcel.frames) if type(parcel) is Parcel else parcel


def size_of(parcel: Any) -> int:
    """Count the bytes of a parcel; roughly, where it is plain."""
    if type(parcel) is Parcel:
        return count_bytes(parcel.frames)
    parts = parcel if type(parcel) is tuple else (parcel,)
    if _LONG.isdisjoint(map(type, parts)):
        return NUMBER_BYTES * len(parts)
    return sum(len(part) if type(part) in _LONG else NUMBER_BYTES for part in parts)


def join(facts: dict[str, Any], parcels: Sequence[Any]) -> list[Frame]:
    """Put parcels into one message.

    Args:
        facts: Plain facts that travel along.
        parcels: What `wrap` returned.
    """
    plain: list[Any] = []
    places: list[tuple[int, int, int]] = []
    streams: list[Frame] = []
    buffers: list[Frame] = []
    for parcel in parcels:
        if type(parcel) is Parcel:
            stream, *own = parcel.frames
            places.append((len(plain), len(stream), len(own)))
            streams.append(stream)
            buffers += own
            plain.append(None)
        else:
            plain.append(parcel)
    return [pickle.dumps((facts, plain, places), protocol=5), b"".join(streams), *buffers]


def split(frames: Sequence[Frame]) -> tuple[dict[str, Any], list[Any]]:
    """Take a message of `join` apart: the facts and the parcels."""
    facts, parcels, places = pickle.loads(frames[0])
    streams = memoryview(frames[1])
    start, buffer = 0, 2
    for index, size, num_buffers in places:
        stream = streams[start : start + size]
        parcels[index] = Parcel([stream, *frames[buffer : buffer + num_buffers]])
        start += size
        buffer += num_buffers
    return facts, parcels
