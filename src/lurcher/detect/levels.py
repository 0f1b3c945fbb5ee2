"""What the plain detectors share: which points count, the points since the last change, and what a change means for the healthy level."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import isfinite
from statistics import median
from typing import Literal, NamedTuple

from lurcher.records import ChangePoint

HUGE = 1000.0
"""A point this many times the level is a stall or a broken clock, not an iteration time."""
ABSURD = 1e12
"""The same before there is a level."""
RECOVERED = 1.05
"""Within 5 % of the healthy level a series counts as recovered."""


def is_time(residual: float, level: float) -> bool:
    """Whether a point can be an iteration time at all; `level` is 0 where none is known."""
    return isfinite(residual) and 0.0 < residual <= (HUGE * level if level > 0.0 else ABSURD)


class Point(NamedTuple):
    """One point of a series."""

    value: float
    iteration: int


class Stretch:
    """The latest points since the last change of level, at most `capacity` of them."""

    def __init__(self, capacity: int) -> None:
        self._points: deque[Point] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._points)

    def add(self, value: float, iteration: int) -> None:
        """Append a point; the oldest falls out of a full stretch."""
        self._points.append(Point(value, iteration))

    def restart(self, points: Iterable[Point] = ()) -> None:
        """Begin anew with these points."""
        kept = list(points)
        self._points.clear()
        self._points.extend(kept)

    def last(self, num: int) -> list[Point]:
        """The latest `num` points, or as many as there are."""
        return list(self._points)[-num:] if num > 0 else []

    def before(self, num: int, at_most: int) -> list[float]:
        """Values of at most `at_most` points before the latest `num`."""
        points = list(self._points)
        return [p.value for p in points[max(0, len(points) - num - at_most) : len(points) - num]]


class Levels:
    """Remembers the healthy level while a series is slow, so that a change can be said in words: slower or faster, and by how much of the healthy level."""

    def __init__(self) -> None:
        self.healthy: float | None = None

    def moved(self, before: float, points: list[Point], iteration: int, detector: str, score: float) -> ChangePoint:
        """The confirmed change from level `before` to the median of `points`, which begin at its onset and end at `iteration`."""
        after = median(p.value for p in points)
        reference = self.healthy if self.healthy is not None else before
        direction: Literal["slower", "faster"] = "slower" if after > before else "faster"
        self.healthy = reference if after > reference * RECOVERED else None
        return ChangePoint(points[0].iteration, iteration, before, after, after / reference, direction, "confirmed", detector, score)


def said(change: ChangePoint, why: str) -> str:
    """One sentence about a change, led by the rule that found it."""
    return (
        f"{why}: level {change.before_s:.4g} -> {change.after_s:.4g} from iteration {change.iteration}, x{change.slowdown:.2f} of the healthy level"
    )
