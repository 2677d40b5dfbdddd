"""Decides which buffers go into shared memory, how they are grouped, and when one serves again."""

import itertools
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jupyter_mgpu import host
from jupyter_mgpu.shared_memory.block import may_hold_more, new_block
from jupyter_mgpu.shared_memory.lent_memory import is_alone, is_lent, lend
from jupyter_mgpu.shared_memory.mapping import address_of, block_of, is_equal

Frame = bytes | memoryview

LEAST_BYTES = 2**20
"""Below this, in all buffers of an object together, the socket is as quick."""
LEAST_BUFFER_BYTES = 64 * 2**10
"""Smaller buffers travel beside: who keeps one of them should not keep the whole block."""
MOST_APART = 8
"""A buffer with at least this part of an object's bytes gets a block of its own."""
LEAST_LENT_BYTES = 16 * 2**20
"""Below this it gains nothing to be copied by a thread of the reader."""
MUCH_BYTES = 64 * 2**20
"""From this size on it is worth a look whether there is memory."""
MOST_OF_MEMORY = 0.8
"""What would take more of the free memory goes into a file, which the system can write out."""


class Store:
    """Puts large buffers of one pool's messages into blocks. Any thread may call it.

    Args:
        folder: Where files go if memfds cannot be used; only this user may enter it.
        name: This process's own among those that use the folder.
        keeps_recent: Whether `age` is called every second, so that a buffer which is placed again
            soon is found though its first receiver is done with it.
        lends: Whether a buffer that nothing else refers to is read where it is.
    """

    def __init__(
        self, folder: Path, name: str, *, keeps_recent: bool = False, lends: bool = False
    ) -> None:
        self._name = name
        self._lends = lends
        self._numbers = itertools.count(1)
        self._keeps_recent = keeps_recent
        self._recent: list[memoryview] = []
        self._older: list[memoryview] = []
        self._folder = folder
        self._uses_memory = self._uses_files = hasattr(os, "memfd_create")  # on Linux only
        self._placed: dict[tuple[int, int], weakref.ref[memoryview]] = {}
        self._lock = threading.Lock()

    def place(self, frames: Sequence[Frame], *, copy: bool = False) -> list[Frame]:
        """Replace large frames by views of blocks.

        Args:
            frames: Contiguous bytes.
            copy: What is returned owns its data.
        """
        placed: dict[int, Frame] = {}
        sizes = [len(frame) for frame in frames]
        large = [i for i, size in enumerate(sizes) if size >= LEAST_BUFFER_BYTES]
        total = sum(sizes[i] for i in large)
        if total >= LEAST_BYTES and (self._uses_memory or self._uses_files):
            apart = [i for i in large if sizes[i] * MOST_APART >= total]
            together = [i for i in large if sizes[i] * MOST_APART < total]
            try:
                for group in [*([i] for i in apart), together]:
                    views = self._group([frames[i] for i in group])
                    placed.update(zip(group, views, strict=False))
            except BaseException:
                placed.clear()  # now: after a Stop, IPython keeps the traceback and this in it
                raise
        return [
            placed[i] if i in placed else bytes(frame) if copy else frame
            for i, frame in enumerate(frames)
        ]

    def _group(self, buffers: Sequence[Frame]) -> Sequence[memoryview]:
        """Return views of one block, or none where that is impossible."""
        if not buffers:
            return ()
        first = buffers[0]
        # A pickle stream, which is bytes, was made for this message only.
        address = address_of(first) if isinstance(first, memoryview) else None
        if len(buffers) > 1 or isinstance(first, bytes) or address is None:
            return self._write(buffers)
        if self._may_lend(first):
            return (lend(first, address),)
        key = (address, len(first))
        known = self._placed.get(key, lambda: None)()
        if known is not None and self._is_usable(known) and is_equal(address, known):
            views: Sequence[memoryview] = (known,)
        else:
            views = self._write(buffers)
            if views:
                self._remember(key, views[0])
        if self._keeps_recent:
            self._recent.extend(views)
        return views

    def age(self) -> None:
        """Let go of what was not placed since the last call but one."""
        self._older, self._recent = self._recent, []

    def _may_lend(self, buffer: memoryview) -> bool:
        is_large = len(buffer) >= LEAST_LENT_BYTES
        return self._lends and is_large and is_alone(buffer) and fits(len(buffer))

    def _is_usable(self, view: memoryview) -> bool:
        """Tell whether the readers can open a block that was placed before."""
        return self._uses_files if block_of(view).is_file else self._uses_memory

    def _remember(self, key: tuple[int, int], view: memoryview) -> None:
        def forget(reference: "weakref.ref[memoryview]") -> None:
            if self._placed.get(key) is reference:
                del self._placed[key]

        self._placed[key] = weakref.ref(view, forget)

    def _write(self, buffers: Sequence[Frame]) -> Sequence[memoryview]:
        size = sum(map(len, buffers))
        if not may_hold_more():
            return ()
        path = self._folder / f"{_prefix(self._name)}{next(self._numbers)}"
        ways: list[Path | None] = [path] if self._uses_files else []
        if self._uses_memory and fits(size):
            ways.insert(0, None)
        for way in ways:
            try:
                return new_block(way, num_bytes=size).fill(buffers)
            except OSError:  # no memory, no disk, no descriptor: another way may do
                continue
        return ()

    def remove_files(self, name: str) -> None:
        """Remove what another process of the pool, which has ended, left in the folder."""
        for path in self._folder.glob(f"{_prefix(name)}*"):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of everything; from now on frames stay where they are."""
        self._uses_memory = self._uses_files = False
        self._recent, self._older = [], []

    def refused(self, frames: Sequence[Frame], answer: dict[str, Any]) -> str | None:
        """Note that a receiver could not open the blocks of a message.

        Returns:
            What to tell the user, None if that is no news.
        """
        if any(map(is_lent, frames)):
            self._lends = False  # whatever the reason: there are other ways
            return None
        if not answer["is_lasting"]:
            return None
        has_file = any(block.is_file for block in map(block_of, frames) if block is not None)
        with self._lock:
            was_used = self._uses_files if has_file else self._uses_memory
            self._uses_memory = False
            self._uses_files = self._uses_files and not has_file
        way = "the sockets, which copies it" if has_file else f"files in {self._folder}"
        sentence = (
            "Shared memory cannot be used here: one process may not open another's "
            f"({answer['why']}). Large data goes through {way}."
        )
        return sentence if was_used else None


def fits(size: int) -> bool:
    """Tell whether there is memory for a block."""
    return size < MUCH_BYTES or size < MOST_OF_MEMORY * host.available_memory_bytes()


def _prefix(name: str) -> str:
    return f"block-{name}-"
