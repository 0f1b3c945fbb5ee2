"""One-sided FOCuS: the likelihood ratio of a rise in the mean, maximised exactly over every start and every size of it.

Romano, Eckley, Fearnhead, Rigaill, JMLR 24(81), 2023 (arXiv 2110.08205), for a known mean before the change (here 0).
For a rise beginning after point i the statistic is (S_n - S_i)^2 / (2 (n - i)). Only the starts on the lower convex hull
of (i, S_i) with S_i below all later ones can ever win; there are O(log n) of them.
"""

from __future__ import annotations

from typing import NamedTuple

from lurcher.detect.correlation import inflation

_MAX_STARTS = 24
"""Bound on memory and time; e^24 points would be needed to fill it by chance."""


class _Start(NamedTuple):
    number: int
    total: float
    num_above: int
    iteration: int  # the first point after this start
    first: float  # and that point itself
    square: float
    product: float  # of neighbours, the pair across the start included


class Segment(NamedTuple):
    """The best rise that ends now: its statistic, number of points, fraction of them above 0, and its first iteration."""

    score: float
    length: int
    fraction: float
    iteration: int


class Inside(NamedTuple):
    """How the points of a segment move about their own mean: sums of their squares and of the products of neighbours, and their number."""

    square: float
    product: float
    length: int

    @property
    def told(self) -> float:
        """Points that say something about scatter and correlation: those that are all clipped, and so alike, do not."""
        return min(self.square, float(self.length))


class Focus:
    """Feed it points with mean below 0 while nothing happens (shift them by a dead zone), in units of their scatter."""

    def __init__(self) -> None:
        self._last = 0.0
        self._clear()

    def _clear(self) -> None:
        self._starts: list[_Start] = []
        self._number = 0
        self._total = 0.0
        self._num_above = 0
        self._square = 0.0
        self._product = 0.0

    def update(self, z: float, iteration: int) -> float:
        """Take one point; return the statistic over all segments that end with it."""
        if z <= 0.0 and not self._starts:
            return 0.0  # most points of a healthy series: nothing is open, and nothing begins
        self._product += z * self._last
        self._add_start(_Start(self._number, self._total, self._num_above, iteration, z, self._square, self._product))
        self._square += z * z
        self._number += 1
        self._total += z
        self._last = z
        self._num_above += z > 0
        if self._total <= self._starts[0].total:
            # No segment has a positive mean: begin afresh, which also keeps the numbers small.
            self._clear()
            return 0.0
        best, number, total = 0.0, self._number, self._total
        for start in self._starts:
            rise = total - start.total
            if rise > 0.0:
                score = rise * rise / (2 * (number - start.number))
                best = max(best, score)
        return best

    def best(self, min_length: int, min_fraction: float, min_mean: float = 0.0, phi: float = 0.0, offset: float = 0.0) -> Segment:
        """The best segment of at least `min_length` points, `min_fraction` of them above 0, whose mean is at least `min_mean`; score 0 if there is none.

        `phi` is the lag-1 correlation of the points, `offset` the variance of an error that all of them share, that of the level they are
        held against: scores are divided by what both add to the variance of a sum of that length.
        """
        found = Segment(0.0, 0, 0.0, 0)
        for start in self._starts:  # the longest segment first
            length = self._number - start.number
            if length < min_length:
                break
            rise = self._total - start.total
            if rise <= 0.0 or rise < min_mean * length or self._num_above - start.num_above < min_fraction * length:
                continue
            score = rise * rise / (2 * length)
            if score > found.score:  # what it is divided by is at least 1
                score /= inflation(length, phi) + length * offset
                if score > found.score:
                    found = Segment(score, length, (self._num_above - start.num_above) / length, start.iteration)
        return found

    def likeliest_rise(self, size: float, slack: float, min_length: int, min_fraction: float, phi: float = 0.0, offset: float = 0.0) -> Segment:
        """The segment most in favour of a rise by `size` above `slack`, both in the unit of the points, over no rise: its log-likelihood ratio as score.

        For points that are AR(1) with coefficient `phi` and normal with variance 1: the ratio of the likelihoods of the segment's first point, and of
        the innovations e_t = y_t - phi y_(t-1), y = point - slack, of all later ones, which a rise lifts by size (1 - phi). The points before
        the segment do not count: taken into the first innovation they would say more, but then a phi too large makes much of a spike.
        With phi = 0 it is Page's CUSUM for a known change, whose best start minimises a linear function of (i, S_i) and so lies on the
        same hull. `offset`: as in `best`.
        """
        found = Segment(0.0, 0, 0.0, 0)
        later = 1.0 - phi
        for start in self._starts:
            length = self._number - start.number
            if length < min_length:
                break
            first = start.first - slack
            rest = self._total - start.total - slack * length - first
            innovations = rest - phi * (rest + first - (self._last - slack))
            score = size * (first - size / 2 + (innovations - (length - 1) * later * size / 2) / (1.0 + phi))
            fraction = (self._num_above - start.num_above) / length
            if score > found.score and fraction >= min_fraction:
                score /= 1.0 + length * offset / inflation(length, phi)
                if score > found.score:
                    found = Segment(score, length, fraction, start.iteration)
        return found

    def inside(self, segment: Segment) -> Inside:
        """How the points of a segment that ends now move about their own mean."""
        start = next(s for s in self._starts if self._number - s.number == segment.length)
        total, num = self._total - start.total, segment.length
        mean = total / num
        square = self._square - start.square - total * mean
        product = self._product - start.product - mean * (2 * total - start.first - self._last) + (num - 1) * mean * mean
        return Inside(max(0.0, square), product, num)

    def _add_start(self, new: _Start) -> None:
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
