"""Runs the chunks of parfor loops on an engine, item after item.

A chunk that takes longer than it was meant to is cut: what is left of it goes back, so that another
engine may take it. Results leave in between where items are slow or results large.
"""

import contextlib
import os
import reprlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_mgpu import packing
from jupyter_mgpu.errors import PackingError
from jupyter_mgpu.on_engine import failure, seeds
from jupyter_mgpu.on_engine.bookmark import Bookmark, path_beside
from jupyter_mgpu.on_engine.context import EngineContext, stop_requested
from jupyter_mgpu.packing import parcels
from jupyter_mgpu.wire import Frame, Header

PART_S = 0.1
"""So often the finished results of a chunk leave before its end."""
LARGE_BYTES = 2**20
"""Results of this size together leave at once."""
MAX_REPR = 80

Guard = Callable[[Callable[[], Any]], Any]
"""Calls user code such that an interrupt raises in it, and only in it."""

_bookmark: Bookmark | None = None


def receive(header: Header, frames: list[Frame], kept: dict[str, Any]) -> bool:
    """Take the loop's function if it comes with the chunk; tells whether it is here.

    Args:
        header: The chunk's.
        frames: How many frames the function has, these, and the chunk's; only the last ones stay.
        kept: Where functions stay until their loop has ended.
    """
    num_frames = int.from_bytes(frames[0], "little")
    if num_frames:
        (kept[header["loop"]],) = packing.unpack(frames[1 : num_frames + 1])
    del frames[: num_frames + 1]
    return header["loop"] in kept


class ChunkRun:
    """One run of a chunk.

    Args:
        context: This engine.
        header: The chunk's.
        frames: Its items.
        guard: Calls user code.
    """

    def __init__(
        self, context: EngineContext, header: Header, frames: list[Frame], guard: Guard
    ) -> None:
        self._emit, self._task = context.emit, header["task"]
        self._place = context.place
        self._number: int = header["chunk"]
        self._function = context.kept[header["loop"]]
        self._guard = guard
        facts, self._items = parcels.split(frames)
        frames.clear()
        self._indices: list[int] = facts["indices"]
        self._seed: int | None = facts["seed"]
        self._collects: bool = facts["collects"]
        self._budget_s: float | None = facts["budget_s"]
        self._first = 0  # position of the first result that has not left
        self._arguments: Any = ()  # of the item that runs
        self._results: list[Any] = []
        self._failed: dict[int, failure.Failure] = {}
        self._large = False
        self.has_failed = False

    def run(self) -> list[Frame]:
        """Run the items and return the results that have not left yet."""
        begun_s = sent_s = time.monotonic()
        bookmark = _open_bookmark()
        with contextlib.nullcontext() if self._seed is None else seeds.preserved():
            for position, index in enumerate(self._indices):
                bookmark.set(self._number, position)
                if stop_requested(after="epoch") or not self._run_item(position, index):
                    break
                now_s = time.monotonic()
                if self._budget_s is not None and now_s - begun_s > self._budget_s:
                    break
                if now_s - sent_s > PART_S or self._large:
                    self._emit({"op": "part", "task": self._task}, self._take_results())
                    sent_s = now_s
        bookmark.set(self._number, -1)
        return self._take_results(seconds=time.monotonic() - begun_s)

    def _run_item(self, position: int, index: int) -> bool:
        """Run one item; tells whether the next one may run."""
        self._arguments, self._items[position] = self._items[position], None
        if self._seed is not None:
            seeds.seed_item(self._seed, index)
        try:
            result = self._guard(self._call)
            self._keep(index, result, is_last=position == len(self._indices) - 1)
        except BaseException as error:  # noqa: BLE001 - the item's, whatever it is
            self._fail(position, index, error)
            return self._collects and not isinstance(error, KeyboardInterrupt)
        finally:
            self._arguments = ()
        return True

    def _call(self) -> Any:
        self._arguments = parcels.unwrap(self._arguments)  # a large one must not live twice
        return self._function(*self._arguments)

    def _keep(self, index: int, result: Any, *, is_last: bool) -> None:
        """Pack a result as it is now: the next item may change what it refers to."""
        # Not shared where more comes: a loan that is refused would arrive after the chunk's end.
        place = self._place if is_last else None
        try:
            parcel = parcels.wrap(result, copy=False, place=place)
        except PackingError as error:
            raise PackingError(f"The result of item {index} cannot be sent: {error}") from None
        if type(parcel) is parcels.Parcel and not is_last:
            self._large = parcels.size_of(parcel) > LARGE_BYTES  # then it leaves before that
            if not self._large:
                parcel = parcels.Parcel([bytes(frame) for frame in parcel.frames])
        self._results.append(parcel)

    def _fail(self, position: int, index: int, error: BaseException) -> None:
        record = failure.describe(error)
        record["notes"].append(note_of(index, self._arguments))
        self._failed[position] = record
        self._results.append(parcels.Parcel(packing.pack_exception(error) or [b""]))
        self.has_failed = True

    def _take_results(self, **facts: Any) -> list[Frame]:
        facts |= {"first": self._first, "failed": self._failed}
        frames = parcels.join(facts, self._results)
        self._first += len(self._results)
        self._results, self._failed, self._large = [], {}, False
        return frames


def note_of(index: int, item: Any) -> str:
    """Say which item it was."""
    try:
        arguments = parcels.unwrap(item)
        text = ", ".join(_short.repr(argument) for argument in arguments)
    except BaseException:  # noqa: BLE001 - a broken __repr__ must not hide the error
        text = "..."
    return f"in item {index} of the loop: {text}"


_short = reprlib.Repr()
_short.maxstring = _short.maxother = MAX_REPR


def _open_bookmark() -> Bookmark:
    global _bookmark
    if _bookmark is None:
        _bookmark = Bookmark(path_beside(Path(os.environ["MGPU_LOG"])))
    return _bookmark
