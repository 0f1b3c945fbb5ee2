"""The shape of a slow period: what rises or falls in a line is no part that broke."""

from __future__ import annotations

import numpy as np

from lurcher.analyze.period import Floats, Period, median_or

RAMP_POINTS = 100
"""Samples on either side of an onset that tell a ramp from a step."""
EDGE_POINTS = 10
"""Samples on either side of an edge that say how steep it is; fewer in a short period."""
STEEP = 0.5
"""An edge is one if it makes this share of the whole rise within a few samples."""


def is_ramp(values: Floats, period: Period) -> bool:
    """Whether the level rises in a line through the period's onset rather than in a step there: software drift that a restart cures.

    Compares the robust misfit of a step at the onset with that of a straight line, over RAMP_POINTS samples on either side.
    Several steps up are no ramp.
    """
    last = len(values) - 1 if period.last is None else period.last
    length = min(RAMP_POINTS, last - period.first + 1, period.first)
    if len(period.steps) > 1 or length < RAMP_POINTS // 5:
        return False
    window = values[period.first - length : period.first + length]
    x = np.arange(len(window), dtype=np.float64)
    good = np.isfinite(window) & (window < 1.2 * period.level)
    left, right = good & (x < length), good & (x >= length)
    if left.sum() < RAMP_POINTS // 10 or right.sum() < RAMP_POINTS // 10:
        return False
    step = np.where(x < length, np.median(window[left]), np.median(window[right]))
    slope, level = np.polyfit(x[good], window[good], 1)
    line = slope * x + level
    return bool(np.median(np.abs(window - line)[good]) < np.median(np.abs(window - step)[good]))


def is_hump(values: Floats, period: Period) -> bool:
    """Whether a period that is over rose slowly and fell slowly: a model that works more for a while, not a part that broke and was mended."""
    if period.last is None:
        return False
    length = period.last - period.first + 1
    points = min(EDGE_POINTS, length // 4)
    if points < 3:
        return False
    highest = np.nanpercentile(values[period.first : period.last + 1], 75)
    rise = highest - period.before
    begin = values[period.first : period.first + points]
    before = values[max(0, period.first - points) : period.first]
    ending = values[period.last + 1 - points : period.last + 1]
    after = values[period.last + 1 : period.last + 1 + points]
    up = median_or(begin, period.level) - median_or(before, period.before)
    down = median_or(ending, period.level) - median_or(after, period.before)
    return bool(up < STEEP * rise and down < STEEP * rise)
