"""One-sided FOCuS: the likelihood ratio of a rise in the mean, maximised exactly over every start and every size of it.

Romano, Eckley, Fearnhead, Rigaill, JMLR 24(81), 2023 (arXiv 2110.08205), for a known mean before the change (here 0).
For a rise beginning after point i the statistic is (S_n - S_i)^2 / (2 (n - i)). Only the starts on the lower convex hull
of (i, S_i) with S_i below all later ones can ever win; there are O(log n) of them.
"""

from __future__ import annotations

from typing import NamedTuple

_MAX_STARTS = 24
"""Bound on memory and time; e^24 points would be needed to fill it by chance."""


class _Start(NamedTuple):
    number: int
    total: float
    num_above: int
    iteration: int  # the first point after this start


class Segment(NamedTuple):
    """The best rise that ends now: its statistic, number of points, fraction of them above 0, and its first iteration."""

    score: float
    length: int
    fraction: float
    iteration: int


class Focus:
    """Feed it points with mean below 0 while nothing happens (shift them by a dead zone), in units of their scatter."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._starts: list[_Start] = []
        self._number = 0
        self._total = 0.0
        self._num_above = 0

    def update(self, z: float, iteration: int) -> float:
        """Take one point; return the statistic over all segments that end with it."""
        self._add_start(iteration)
        self._number += 1
        self._total += z
        self._num_above += z > 0
        if self._total <= self._starts[0].total:
            # No segment has a positive mean: begin afresh, which also keeps the numbers small.
            self._clear()
            return 0.0
        return max(self._score(start) for start in self._starts)

    def best(self, min_length: int, min_fraction: float) -> Segment:
        """The best segment of at least `min_length` points of which at least `min_fraction` lie above 0; score 0 if there is none."""
        found = Segment(0.0, 0, 0.0, 0)
        for start in self._starts:
            length = self._number - start.number
            fraction = (self._num_above - start.num_above) / max(1, length)
            score = self._score(start)
            if length >= min_length and fraction >= min_fraction and score > found.score:
                found = Segment(score, length, fraction, start.iteration)
        return found

    def _score(self, start: _Start) -> float:
        rise = self._total - start.total
        return rise * rise / (2 * (self._number - start.number)) if rise > 0 else 0.0

    def _add_start(self, iteration: int) -> None:
        new = _Start(self._number, self._total, self._num_above, iteration)
        starts = self._starts
        while starts and starts[-1].total >= new.total:
            starts.pop()
        while len(starts) >= 2 and _slope(starts[-1], new) <= _slope(starts[-2], starts[-1]):
            starts.pop()
        starts.append(new)
        if len(starts) > _MAX_STARTS:
            del starts[0]


def _slope(a: _Start, b: _Start) -> float:
    return (b.total - a.total) / (b.number - a.number)
