"""Runs a part of a loop that outlives its kernel: an ordinary task that calls this with items."""

import contextlib
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from jupyter_mgpu import packing
from jupyter_mgpu.on_engine import failure, seeds
from jupyter_mgpu.on_engine.chunks import note_of
from jupyter_mgpu.on_engine.context import stop_requested

Packed = list[Any]
"""An object that was packed for itself: what it holds is not shared with what travels beside it."""

_function: tuple[str, Callable[..., Any]] | None = None  # of the loop that this engine ran last


def wrap(obj: Any) -> Packed:
    """Pack an object for itself, as it is now.

    Raises:
        PackingError: If a part cannot be pickled.
    """
    return _buffers(packing.pack(obj, copy=True))


def run_part(
    key: str,
    function: Packed,
    first: int,
    items: Sequence[Packed],
    seed: int | None,
    *,
    collects: bool,
) -> list[tuple[dict[str, Any] | None, Packed]]:
    """Run some items of a loop, one after the other.

    Args:
        key: The loop's.
        function: What is called.
        first: The index of the first item.
        items: The arguments of each.
        seed: The loop's seed.
        collects: Whether exceptions stand in the place of results.

    Returns:
        For each item that ran, None and its result, or what is told of its exception and that.

    Raises:
        BaseException: What the first failing item raised, unless they are collected.
    """
    global _function
    if _function is None or _function[0] != key:
        _function = key, packing.unpack(function)
    outcomes: list[tuple[dict[str, Any] | None, Packed]] = []
    with contextlib.nullcontext() if seed is None else seeds.preserved():
        for index, packed in enumerate(items, start=first):
            if stop_requested(after="epoch"):
                break
            if seed is not None:
                seeds.seed_item(seed, index)
            arguments: tuple[Any, ...] = ()
            try:
                arguments = packing.unpack(packed)
                outcomes.append((None, wrap(_function[1](*arguments))))
            except Exception as error:
                error.add_note(note_of(index, arguments))
                if not collects:
                    raise
                record = dict(failure.describe(error))
                outcomes.append((record, _buffers(packing.pack_exception(error) or [b""])))
    return outcomes


def _buffers(frames: Sequence[Any]) -> Packed:
    return [pickle.PickleBuffer(frame) for frame in frames]
