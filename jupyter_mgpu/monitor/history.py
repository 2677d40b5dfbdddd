"""The last minutes of every number, in memory that does not grow."""

import math
from array import array
from bisect import bisect_left
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

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
        first = bisect_left(self._times_s, end_s - (num_points - 0.5) * step_s)
        values: list[float | None] = [None] * num_points
        oldest = num_points
        for place in range(first, len(column)):
            slot = num_points - 1 - round((end_s - self._times_s[place]) / step_s)
            value = column[place]
            if slot >= 0 and not math.isnan(value):
                values[slot] = value
                oldest = min(oldest, slot)
        return Series(step_s, tuple(values[oldest:]))

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
