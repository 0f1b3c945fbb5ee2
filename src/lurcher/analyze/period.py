"""Change points to slow periods: one per contiguous stretch above the healthy level, placed with hindsight.

The detector says when a change became certain; what lies before and after that moment then says better where it began,
where it ended and how large it was. `detected_iteration` stays the detector's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from lurcher.records import ChangePoint

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SMALLEST, LARGEST = 1e-12, 1e15
"""No duration in any unit lies outside; a ratio of two numbers near the ends of the float range is none."""
LEVEL_POINTS = 50
"""Samples on either side that a level is the median of, and samples that must lie at the healthy level to show that it is back."""
HALFWAY = 0.5
"""A sample belongs to the slow period from half of the way up to its level,"""
EDGE = 0.10
"""or from this much above the level before, where the period is a high one: its edges are lower than its middle."""
CRISP = 0.20
"""From this rise on a sample is above the line or it is not; below, how far it is counts."""
LEFT_OVER, MOST_LEFT_OVER = 0.2, 0.08
"""A fall ends a period if it leaves less than this share of the rise, and never more than this of the level before,"""
NEAR = 0.04
"""or if it leaves less than this and less than half of the rise: no fault with a record was smaller."""


class Period(msgspec.Struct, frozen=True):
    """A slow stretch. `first` and `last` are positions in the series, `last` None while it lasts; levels are in the series' unit."""

    first: int
    last: int | None
    detected_iteration: int
    before: float
    level: float
    after: float | None
    steps: tuple[ChangePoint, ...]

    @property
    def slowdown(self) -> float:
        """Level inside over the level before."""
        return self.level / self.before


def periods(iterations: Ints, values: Floats, changes: Sequence[ChangePoint], level_points: int = LEVEL_POINTS) -> tuple[Period, ...]:
    """Group confirmed changes of one series into slow periods.

    iterations, values: the series, NaN where a value is unknown. A change upwards opens a period or raises the open one,
    a change downwards to near the level before closes it, a smaller one is part of it. `level_points`: samples before a
    period that its level before is the median of.
    """
    found: list[Period] = []
    steps: list[ChangePoint] = []
    confirmed = [change for change in changes if change.tier == "confirmed"]
    for number, change in enumerate(confirmed):
        here = int(np.searchsorted(iterations, change.iteration))
        if steps and (back := _unseen_return(iterations, values, steps, here)) is not None:
            found.append(_period(iterations, values, steps, back, here, found, level_points))
            steps = []
        if change.direction == "slower":
            steps.append(change)
        elif steps and change.after_s <= _closing_level(steps):
            limit = next((int(np.searchsorted(iterations, c.iteration)) for c in confirmed[number + 1 :] if c.direction == "slower"), len(values))
            found.append(_period(iterations, values, steps, here, max(limit, here + 1), found, level_points))
            steps = []
    if steps:
        back = _unseen_return(iterations, values, steps, len(values))
        found.append(_period(iterations, values, steps, back, len(values), found, level_points))
    return tuple(found)


def _closing_level(steps: Sequence[ChangePoint]) -> float:
    """At or below this the series is back at the level before its first step."""
    before = steps[0].before_s
    rise = max(step.after_s for step in steps) / before - 1.0
    return before * (1.0 + max(min(NEAR, HALFWAY * rise), min(LEFT_OVER * rise, MOST_LEFT_OVER)))


def _unseen_return(iterations: Ints, values: Floats, steps: Sequence[ChangePoint], until: int) -> int | None:
    """Position from which the series is back although no change said so: a slow fall is followed by the detector's level, and seen only afterwards."""
    begin = int(np.searchsorted(iterations, steps[-1].detected_iteration)) + 1
    if until - begin < LEVEL_POINTS:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(values[begin:until], LEVEL_POINTS)[:: LEVEL_POINTS // 10]
    known = np.isfinite(windows).any(axis=1)
    back = np.flatnonzero(known)[np.nanmedian(windows[known], axis=1) <= _closing_level(steps)] if known.any() else np.array([], np.int64)
    return begin + int(back[0]) * (LEVEL_POINTS // 10) if len(back) else None


def _period(
    iterations: Ints, values: Floats, steps: Sequence[ChangePoint], end: int | None, limit: int, earlier: Sequence[Period], level_points: int
) -> Period:
    """`end`: position of the first sample that is back, roughly; `limit`: position that the end may not reach."""
    certain = int(np.searchsorted(iterations, steps[0].detected_iteration))
    rough_first = int(np.searchsorted(iterations, steps[0].iteration))
    rough_last = len(values) - 1 if end is None else max(end - 1, rough_first)
    before = median_or(values[max(0, rough_first - level_points) : rough_first], steps[0].before_s)
    line = line_of(before, median_or(values[rough_first : rough_last + 1], steps[0].after_s))
    floor = 0 if not earlier or earlier[-1].last is None else earlier[-1].last + 1
    first = _edge(values, min(certain, rough_last), max(floor, rough_first - LEVEL_POINTS), line, before)
    last = None if end is None else _edge(values, max(first, rough_first), min(limit - 1, rough_last + LEVEL_POINTS), line, before)
    before = median_or(values[max(floor, first - level_points) : first], before)
    level = median_or(values[first : (rough_last if last is None else last) + 1], steps[0].after_s)
    after = None if last is None else median_or(values[last + 1 : last + 1 + LEVEL_POINTS], before)
    return Period(first, last, steps[0].detected_iteration, before, level, after, tuple(steps))


def line_of(before: float, level: float) -> float:
    """The value above which a sample belongs to a period of this level."""
    return before + min(HALFWAY * (level - before), EDGE * before)


def _edge(values: Floats, inside: int, outside: int, line: float, before: float) -> int:
    """The position between `inside` and `outside` up to which samples lie above the line rather than below it.

    Maximises the sum of (value - line) from `inside` on, each sample clipped: the likelihood of a step at that place, robust
    against single samples on the wrong side. Of equals the one nearest to `inside`.
    """
    path = np.arange(inside, outside + 1) if outside >= inside else np.arange(inside, outside - 1, -1)
    scale = line - before if 2.0 * (line - before) < CRISP * before and line > before else 0.0
    beyond = np.where(np.isfinite(values[path]), values[path] - line, 0.0)
    votes = np.clip(beyond / scale, -1.0, 1.0) if scale > 0.0 else np.sign(beyond)
    return int(path[np.argmax(np.cumsum(votes))])


def median_or(values: Floats, otherwise: float) -> float:
    """The median of what is known of `values`, or `otherwise`."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else otherwise


def as_floats(values: Any) -> Floats:
    """A float array with NaN for what cannot be a duration: not finite, not positive, or too small or large to take ratios of."""
    array = np.array(values, dtype=np.float64)
    array[~((array > SMALLEST) & (array < LARGEST))] = np.nan
    return array
