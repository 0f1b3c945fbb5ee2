"""A level and its relative scatter, learned from few points and followed slowly: median and MAD, and how unsure they are."""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from statistics import fmean, median
from typing import NamedTuple

from lurcher.detect.correlation import inflation

CAPACITY = 300
"""Points after which the estimate counts as settled (detection.md, section 5: 300 or more, better 1,500)."""
SIGMA_FLOOR = 0.004
"""No series is taken to scatter less than 0.4 % (the same section)."""
_MAD_TO_SIGMA = 1.4826
_NEAR = 1.5
"""Points count as at most so many scatters from the median when the level is placed (Huber 1964): nearly a mean, and still deaf to spikes."""
_LEVEL_VARIANCE = 1.06
"""Of such a level, over that of a mean of normal points; a median's is 1.57."""
_MANY = 100
_WIDEN = 0.7
_FOLLOW = 2e-5
"""Most that a settled level moves per point: a creep of 2 % in 1,000 iterations is followed, a step is not (detection.md has 1e-5, which lags
behind a level that wanders by 2 %, and so needs a wider dead zone)."""
_FOLLOW_SIGMA = 1e-3


class Scale(NamedTuple):
    """What points are held against: a level in the input's unit, the scatter of a point relative to it, and how many points say so."""

    level: float
    sigma: float
    num_points: int

    def offset(self, phi: float) -> float:
        """Variance of the level, in units of the scatter squared, where points have lag-1 correlation `phi`.

        Points that hang together tell less: 18 points of AR(1) 0.7 know the level as well as 4 independent ones, and where they happened to lie
        is no measure for those after them.
        """
        return _LEVEL_VARIANCE * inflation(self.num_points, phi) / self.num_points


class Baseline:
    """Level (in the input's unit) and scatter (relative to it) of a healthy, or steadily slow, stretch of a series.

    Bounded: at most CAPACITY points are kept. `kept_sigma` is a scatter known from before, used until enough points are
    there to estimate it anew; a level needs few points, a scatter many.
    """

    def __init__(self, points: Iterable[float] = (), kept_sigma: float | None = None) -> None:
        self._points: list[float] = []
        self._kept_sigma = kept_sigma
        self.level = 0.0
        self._sigma = kept_sigma if kept_sigma is not None else SIGMA_FLOOR
        for point in points:
            self._points.append(point)
        self._estimate()

    def __len__(self) -> int:
        return len(self._points)

    @property
    def points(self) -> tuple[float, ...]:
        """The points kept, in their order."""
        return tuple(self._points)

    @property
    def sigma(self) -> float:
        """Relative scatter, as in `scale`."""
        return self.scale().sigma

    def scale(self) -> Scale:
        """Everything about the level.

        The scatter is widened by the error of its own estimate (of order 1/sqrt(2n) for a normal sample, more for the MAD).
        """
        num = max(1, len(self._points))
        known = self._kept_sigma is not None or not self._points
        sigma = self._sigma if known else self._sigma * (1.0 + _WIDEN / sqrt(num))
        return Scale(self.level, sigma, num)

    def add(self, point: float) -> None:
        """Learn from one more healthy point. Once settled, level and scatter only follow in small steps."""
        if len(self._points) < CAPACITY:
            self._points.append(point)
            # The median of many points hardly moves with one more.
            if len(self._points) < 40 or len(self._points) % 10 == 0:
                self._estimate()
            return
        rel = point / self.level - 1.0
        self.level *= 1.0 + max(-_FOLLOW, min(_FOLLOW, rel))
        grows = abs(rel) * _MAD_TO_SIGMA > self._sigma
        self._sigma = max(SIGMA_FLOOR, self._sigma * (1.0 + (_FOLLOW_SIGMA if grows else -_FOLLOW_SIGMA)))

    def _estimate(self) -> None:
        if not self._points:
            return
        self.level = median(self._points)
        if self._kept_sigma is not None and len(self._points) < 40:
            return
        self._kept_sigma = None
        rels = [p / self.level - 1.0 for p in self._points]
        sigma = max(SIGMA_FLOOR, _MAD_TO_SIGMA * median(abs(rel) for rel in rels))
        if len(rels) < _MANY:
            # Twice as efficient as the MAD alone, and still deaf to spikes.
            clip = 2.5 * sigma
            sigma = max(SIGMA_FLOOR, sqrt(sum(min(clip, max(-clip, rel)) ** 2 for rel in rels) / (len(rels) - 1 or 1)))
        self._sigma = sigma
        near = _NEAR * sigma
        self.level *= 1.0 + fmean(min(near, max(-near, rel)) for rel in rels)
