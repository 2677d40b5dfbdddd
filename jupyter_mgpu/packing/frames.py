"""pack and unpack: an object to frames and back."""

import io
import pickle
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from jupyter_mgpu.errors import PackingError
from jupyter_mgpu.packing import tensors
from jupyter_mgpu.packing.faults import find_fault
from jupyter_mgpu.packing.pickler import Pickler

Frame = bytes | memoryview
P = TypeVar("P", bound=Pickler)


class Place(Protocol):
    """Puts frames where they travel from."""

    def __call__(self, frames: Sequence[Frame], *, copy: bool = False) -> list[Frame]:
        """Return what stands for each frame; with `copy`, it owns its data."""


def place_here(frames: Sequence[Frame], *, copy: bool = False) -> list[Frame]:
    """Leave frames where they are, or copy those that are views."""
    return [bytes(frame) for frame in frames] if copy else list(frames)


# Below this a message of its own costs more than the copy into the stream.
APART_BYTES = 4096


def pack(
    obj: Any, *, copy: bool = False, labels: Sequence[str] = (), place: Place | None = None
) -> list[Frame]:
    """Pack an object into frames.

    Args:
        obj: Any object. What was defined in the notebook goes by value, in its newest version.
        copy: Frames own their data, so that the caller may change the object at once. Otherwise
            large frames are views of the object's memory.
        labels: Where obj is a tuple, what errors call its items.
        place: Puts large frames elsewhere, as `Store.place` does.

    Returns:
        The pickle stream, then the buffers that travel apart (larger than 4 KiB).

    Raises:
        PackingError: If a part cannot be pickled. Its path and the reason are told.
    """
    try:
        _, stream, buffers = dump(obj, Pickler)
    except Exception as error:
        path = find_fault(obj, _try_to_dump, labels)
        raise PackingError(describe_fault(path, error)) from error
    return (place or place_here)([stream, *buffers], copy=copy)


def unpack(frames: Sequence[Any]) -> Any:
    """Rebuild an object from frames. Its arrays and tensors can be written.

    Frames that can be written are used in place, others are copied.

    Raises:
        PackingError: If the object cannot be rebuilt; its own error is the cause.
    """
    try:
        return pickle.loads(frames[0], buffers=_writable(frames[1:]))
    except Exception as error:
        raise PackingError(_describe_rebuild(error)) from error
    finally:
        tensors.let_go_of_sparse()


def count_bytes(frames: Sequence[Any]) -> int:
    """Count the bytes of all frames."""
    return sum(memoryview(frame).nbytes for frame in frames)


def describe_fault(path: str, error: BaseException) -> str:
    """Say in one line which part cannot be packed, and why."""
    reason = str(error) or type(error).__name__
    return f"{path}: {reason}" if path else reason


def dump(
    obj: Any, make_pickler: Callable[..., P], compact: frozenset[int] = frozenset()
) -> tuple[P, bytes, list[memoryview]]:
    """Pickle an object with buffers apart, and without storages that one small view drags along.

    Args:
        obj: The object.
        make_pickler: Called with file, buffer_callback and compact, as `Pickler` is.
        compact: Storages of which only the used part is sent.

    Returns:
        The pickler that was used, the stream and the buffers.
    """
    buffers: list[memoryview] = []

    def keep_apart(buffer: pickle.PickleBuffer) -> bool:
        try:
            view = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if view.nbytes <= APART_BYTES:
            return True
        buffers.append(view)
        return False

    with io.BytesIO() as file:
        pickler = make_pickler(file, keep_apart, compact)
        pickler.dump(obj)
        wasteful = pickler.storages.wasteful()
        if not wasteful:
            return pickler, file.getvalue(), buffers
    return dump(obj, make_pickler, wasteful | compact)


def _try_to_dump(obj: Any) -> None:
    Pickler(io.BytesIO(), lambda _: False).dump(obj)


def _writable(frames: Sequence[Any]) -> Iterator[Any]:
    for frame in frames:
        view = memoryview(frame)
        yield bytearray(view) if view.readonly else view


def _describe_rebuild(error: BaseException) -> str:
    steps = [
        step.name for step in traceback.extract_tb(error.__traceback__) if step.filename != __file__
    ]
    inner = error.__traceback__
    while inner is not None and inner.tb_frame.f_code.co_filename == __file__:
        inner = inner.tb_next
    place = f" in {inner.tb_frame.f_code.co_qualname}" if steps and inner is not None else ""
    return f"An object cannot be rebuilt here: {type(error).__name__}{place}: {error}"
