"""A burst among the first points of a series: some slow iterations in a row (a busy host, a warm-up) that level and scatter must not be learned from."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from lurcher.detect.baseline import Baseline

FEWEST = 4
"""Slow iterations in a row that are a burst; fewer hardly move level and scatter, spikes being clipped, and correlated noise has such waves."""
SIGMAS = 2.5
"""A burst's points lie so many scatters above the level of the OTHER points: four in a row do so by chance once in 1e9 normal points."""


def between_bursts(points: Sequence[float], min_rise: float) -> list[list[float]]:
    """The points before and after the longest burst; all of them where there is none, or where more than a third are slow: that is no burst.

    A burst's points all lie above the level by more than `min_rise` and by SIGMAS, and level and scatter are those of the others: five slow
    points of eighteen would double a scatter that they are part of, and hide in it. `min_rise` keeps waves of correlated noise
    where they are: without them the scatter would seem smaller than it is.
    """
    most = len(points) // 3
    if max(points) < median(points) * (1.0 + min_rise):
        return [list(points)]
    for length in range(most, FEWEST - 1, -1):
        for start in range(len(points) - length + 1):
            before, run, after = points[:start], points[start : start + length], points[start + length :]
            scale = Baseline([*before, *after]).scale()
            line = scale.level * (1.0 + max(min_rise, SIGMAS * scale.sigma))
            if min(run) > line and sum(p > line for p in points) <= most:
                return [list(stretch) for stretch in (before, after) if stretch]
    return [list(points)]
