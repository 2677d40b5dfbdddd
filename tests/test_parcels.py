"""Many objects in few frames: each for itself, plain ones without a pickle."""

import threading

import numpy as np
import pytest

from jupyter_mgpu.errors import PackingError
from jupyter_mgpu.packing import parcels
from jupyter_mgpu.packing.parcels import Parcel


def travel(objects):
    facts, arrived = parcels.split(parcels.join({"number": 1}, [parcels.wrap(o) for o in objects]))
    assert facts == {"number": 1}
    return [parcels.unwrap(parcel) for parcel in arrived]


def test_objects_of_every_kind_arrive_in_order() -> None:
    objects = [1, "text", [1, 2], None, (3, "4"), {"a": [5]}, b"bytes", (6, [7]), 2.5, True]

    assert travel(objects) == objects
    assert travel([]) == []


def test_large_buffers_travel_apart_and_come_back_to_their_object() -> None:
    arrays = [np.arange(10_000) + number for number in range(3)]

    frames = parcels.join({}, [parcels.wrap(array) for array in arrays])
    arrived = travel(["before", *arrays, "after"])

    assert len(frames) == 5
    assert arrived[0] == "before"
    assert all(np.array_equal(a, b) for a, b in zip(arrived[1:4], arrays, strict=True))
    arrived[1][0] = -1  # can be written


def test_objects_do_not_share_what_they_hold() -> None:
    shared = [1]

    first, second = travel([shared, shared])

    assert first == second == [1]
    assert first is not second


def test_a_parcel_holds_the_object_as_it_was() -> None:
    array = np.zeros(10_000)
    parcel = parcels.wrap(array)

    array[:] = 1

    assert not parcels.unwrap(parcel).any()


def test_plain_objects_are_their_own_parcels() -> None:
    assert parcels.wrap((1, "two", 3.0)) == (1, "two", 3.0)
    assert isinstance(parcels.wrap((1, [2])), Parcel)
    assert parcels.size_of(parcels.wrap([1] * 1000)) > 1000
    assert parcels.size_of(("text", 1)) == 12


def test_what_cannot_be_packed_is_named() -> None:
    with pytest.raises(PackingError, match=r"first\[1\]"):
        parcels.wrap(([1, threading.Lock()],), labels=("first",))
