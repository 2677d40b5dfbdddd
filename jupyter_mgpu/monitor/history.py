"""The last minutes of every number, in memory that does not grow."""

import math
from array import array
from bisect import bisect_left
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

KEPT_S = 600.0
FEWEST_POINTS, MOST_POINTS = 600, 1200
MOST_COLUMNS = 1024
UNKNOWN = math.nan


@dataclass(frozen=True, slots=True)
class Series:
    """One number over time, newest last, in equal steps; None where there was no reading."""

    step_s: float
    values: tuple[float | None, ...] = ()


class History:
    """A bounded table of numbers, one row per tick, one column per number that is watched.

    It keeps ten minutes; with less than a tick per second 600 rows, however long these take.
    """

    def __init__(self) -> None:
        self._times_s = array("d")
        self._columns: dict[Hashable, array[float]] = {}
        # Views ask for many series of the same rows.
        self._found: tuple[Any, tuple[int, list[int] | None]] | None = None

    def __len__(self) -> int:
        return len(self._times_s)

    @property
    def num_columns(self) -> int:
        """How many numbers it knows."""
        return len(self._columns)

    def add(self, now_s: float, row: Mapping[Hashable, float | None]) -> None:
        """Take in the readings of one tick; a column that has none gets a gap."""
        self._times_s.append(now_s)
        for key, value in row.items():
            column = self._columns.get(key)
            if column is None:
                column = self._columns[key] = array("d", [UNKNOWN]) * (len(self._times_s) - 1)
            column.append(UNKNOWN if value is None else value)
        if len(row) < len(self._columns):
            for key, column in self._columns.items():
                if key not in row:
                    column.append(UNKNOWN)
        self._trim(now_s, row)

    def series(
        self, key: Hashable, *, step_s: float, num_points: int, now_s: float | None = None
    ) -> Series:
        """Return the newest values of one number in equal steps.

        Args:
            key: The column.
            step_s: Seconds between two values; of several readings in one step the last counts.
            num_points: At most so many values.
            now_s: Where the series ends; at the newest row by default.
        """
        column = self._columns.get(key)
        if column is None or not self._times_s:
            return Series(step_s)
        end_s = self._times_s[-1] if now_s is None else max(now_s, self._times_s[-1])
        first, slots = self._slots(end_s, step_s, num_points)
        newest = [_known(value) for value in column[first:]]
        if slots is not None:
            values: list[float | None] = [None] * num_points
            for slot, value in zip(slots, newest, strict=True):
                if value is not None:
                    values[slot] = value
            newest = values
        oldest = next((n for n, value in enumerate(newest) if value is not None), len(newest))
        return Series(step_s, tuple(newest[oldest:]))

    def rows(self) -> tuple[tuple[Hashable, ...], list[tuple[float | None, ...]]]:
        """Return the keys, and one row per tick: its time and a value per key."""
        columns = [[_known(value) for value in column] for column in self._columns.values()]
        return tuple(self._columns), list(zip(self._times_s, *columns, strict=True))

    def _slots(self, end_s: float, step_s: float, num_points: int) -> tuple[int, list[int] | None]:
        """Find the first row of a series, and the place of each row; None for one after another."""
        wanted = (end_s, step_s, num_points, self._times_s[-1])
        if self._found is None or self._found[0] != wanted:
            first = bisect_left(self._times_s, end_s - (num_points - 0.5) * step_s)
            times_s = self._times_s[first:]
            slots = [num_points - 1 - round((end_s - time_s) / step_s) for time_s in times_s]
            is_plain = slots == list(range(num_points - len(slots), num_points))
            self._found = wanted, (first, None if is_plain else slots)
        return self._found[1]

    def _trim(self, now_s: float, row: Mapping[Hashable, float | None]) -> None:
        surplus = max(0, len(self._times_s) - MOST_POINTS)
        too_old = bisect_left(self._times_s, now_s - KEPT_S)
        surplus = max(surplus, min(too_old, len(self._times_s) - FEWEST_POINTS))
        if surplus:
            del self._times_s[:surplus]
            for column in self._columns.values():
                del column[:surplus]
        if len(self._columns) > len(row) and surplus:
            self._forget_ended(row)
        while len(self._columns) > max(MOST_COLUMNS, len(row)):
            del self._columns[next(key for key in self._columns if key not in row)]

    def _forget_ended(self, row: Mapping[Hashable, float | None]) -> None:
        for key in [key for key in self._columns if key not in row]:
            if all(map(math.isnan, self._columns[key])):
                del self._columns[key]


def _known(value: float) -> float | None:
    return value if value == value else None  # only NaN differs from itself
