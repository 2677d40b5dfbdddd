"""Curves of any length in a bounded number of points, with their extremes kept."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MAX_POINTS = 1000
MIN_POINTS = 50
MAX_CURVES = 16
"""Of one training: who reports more names sees the first ones."""
MAX_EPOCHS = 500
"""So many are shaded."""

Point = tuple[float, float | None]
"""Step and value; None where the value is not finite."""


class Curve:
    """One curve as it grows: exact up to 1,000 points, then the extremes of equal groups.

    A group of points is drawn within one column of pixels: its smallest and its largest value in
    their order look like all of it. When there are too many groups, pairs of them become one.
    """

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._group: list[Point] = []  # the open one, as its extremes
        self._num_in_group = 0
        self._group_size = 1
        self._last: Point | None = None
        self._lowest: Point | None = None
        self._lowest_value = math.inf

    def add(self, step: float, value: float) -> None:
        """Take the next point.

        Args:
            step: Not below the one before.
            value: May be infinite or undefined, which breaks the line.
        """
        point: Point = (step, shortened(value) if math.isfinite(value) else None)
        self._last = point
        if point[1] is not None and point[1] < self._lowest_value:
            self._lowest, self._lowest_value = point, point[1]
        if self._group_size == 1:
            self._points.append(point)
        else:
            self._group = extremes([*self._group, point])
            self._num_in_group += 1
            if self._num_in_group == self._group_size:
                self._points += self._group
                self._group, self._num_in_group = [], 0
        if len(self._points) > MAX_POINTS:
            self._halve()

    def _halve(self) -> None:
        """Let each two groups be one. A group of one point or two is those points themselves."""
        self._group_size = 4 if self._group_size == 1 else 2 * self._group_size
        whole, rest = divmod(len(self._points), 4)
        points = self._points
        self._points = [
            kept for place in range(whole) for kept in extremes(points[4 * place : 4 * place + 4])
        ]
        self._group = extremes(points[4 * whole :])
        self._num_in_group = rest * self._group_size // 4

    def points(self, limit: int = MAX_POINTS) -> list[Point]:
        """Return at most so many points, the first and the last of all among them."""
        points = [*self._points, *self._group]
        if self._last is not None and points and points[-1][0] != self._last[0]:
            points.append(self._last)
        return decimate(points, limit)

    @property
    def last(self) -> Point | None:
        """The newest point."""
        return self._last

    @property
    def lowest(self) -> Point | None:
        """The first point with the smallest value."""
        return self._lowest


def extremes(points: Sequence[Point]) -> list[Point]:
    """Return the smallest and the largest of some points, in their order."""
    low = high = -1
    lowest, highest = math.inf, -math.inf
    for place, (_, value) in enumerate(points):
        if value is None:
            continue
        if value < lowest:
            low, lowest = place, value
        if value > highest:
            high, highest = place, value
    if low < 0:
        return list(points[:1])
    if low == high:
        return [points[low]]
    return [points[low], points[high]] if low < high else [points[high], points[low]]


def decimate(points: Sequence[Point], limit: int) -> list[Point]:
    """Leave out what cannot be seen: each group of neighbours becomes its extremes.

    Args:
        points: Steps ascending.
        limit: At most so many stay; from 4 on.

    Returns:
        The first and the last point, and the extremes in between.
    """
    if len(points) <= limit:
        return list(points)
    inner = points[1:-1]
    num_groups = (limit - 2) // 2
    kept = [points[0]]
    for number in range(num_groups):
        begin = number * len(inner) // num_groups
        end = (number + 1) * len(inner) // num_groups
        kept += extremes(inner[begin:end])
    return [*kept, points[-1]]


class Curves:
    """The curves of one training or task, by name, fed by the rows that it reports."""

    def __init__(self) -> None:
        self._curves: dict[str, Curve] = {}
        self._epoch_steps: list[int] = []
        self.last_step: int | None = None
        self._epoch: int | None = None

    def add(self, row: Mapping[str, Any]) -> None:
        """Take a row: numbers by name, `step` and `epoch` among them."""
        step = row.get("step")
        self.last_step = step = (self.last_step or 0) + 1 if step is None else int(step)
        epoch = row.get("epoch")
        if epoch is not None and epoch != self._epoch:
            self._epoch = int(epoch)
            self._epoch_steps.append(step)
        for name, value in row.items():
            if name not in _NO_CURVES and isinstance(value, int | float):
                if name not in self._curves and len(self._curves) == MAX_CURVES:
                    continue
                self._curves.setdefault(name, Curve()).add(step, value)

    def lowest(self, name: str) -> Point | None:
        """Return the smallest value of a curve with its step; None where there is no curve."""
        curve = self._curves.get(name)
        return curve.lowest if curve is not None else None

    def epoch_starts(self) -> list[int]:
        """Return the first step of each epoch; of very many, of each second, fourth and so on."""
        return self._epoch_steps[:: len(self._epoch_steps) // MAX_EPOCHS + 1]

    def names(self) -> list[str]:
        """Return the curves' names: losses first, the learning rate last."""
        return sorted(self._curves, key=_order)

    @property
    def epoch(self) -> int | None:
        """The epoch of the newest row that names one."""
        return self._epoch

    def last_values(self) -> dict[str, float | None]:
        """Return the newest value of each curve."""
        return {name: curve.last[1] for name, curve in self._curves.items() if curve.last}

    def state(self, limit: int = MAX_POINTS) -> list[dict[str, Any]]:
        """Return all curves as the views draw them: more than four share the points of four."""
        names = self.names()
        each = min(limit, max(MIN_POINTS, 4 * limit // max(len(names), 1)))
        return [_curve_state(name, self._curves[name].points(each)) for name in names]


_NO_CURVES = ("step", "epoch", "seconds")


def _order(name: str) -> tuple[int, str]:
    is_loss = name in ("loss", "validation_loss")
    return (0 if is_loss else 2 if name == "rate" else 1, name)


def _curve_state(name: str, points: Iterable[Point]) -> dict[str, Any]:
    points = list(points)
    return {
        "name": name,
        "validation": name.startswith("validation"),
        "steps": [int(step) for step, _ in points],
        "values": [value for _, value in points],
    }


def shortened(value: float) -> float:
    """Round to five significant digits: more cannot be seen, and would have to be sent."""
    return float(f"{value:.5g}")
