"""Sliding window: the mean of the last few points against the points before them. GREYHOUND's first baseline (Tables 3 and 4).

The rule that most tools use. It is blind below its fixed percentage, and what is periodic or lies in the window moves it.
"""

from __future__ import annotations

from statistics import fmean, median
from typing import Literal

from lurcher.detect.levels import Levels, Point, Stretch, is_time, said
from lurcher.records import ChangePoint

NAME = "sliding-window"
RECENT = 10
PREVIOUS = 50
MIN_CHANGE = 1.10
"""GREYHOUND, Tables 3 and 4: more than 10 % off the window's median."""
MIN_PREVIOUS = 20
_AFTER_REBASE = 5


class SlidingWindow:
    """Mean of the last `recent` points against the median (or mean) of the `previous` before them, both ways, by a fixed ratio.

    After a change the window begins anew at the onset, so that the same change is reported once.
    """

    def __init__(
        self, *, recent: int = RECENT, previous: int = PREVIOUS, min_change: float = MIN_CHANGE, against: Literal["median", "mean"] = "median"
    ) -> None:
        self._recent, self._previous, self._min_change, self._against = recent, previous, min_change, against
        self.num_ignored = 0
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._begin(MIN_PREVIOUS)
        self.reason = f"filling the window: {MIN_PREVIOUS + self._recent} iterations are needed"

    def rebase(self) -> None:
        """Fill the window anew after a change of the job."""
        self._begin(_AFTER_REBASE)
        self.reason = "filling the window anew after a change of the job"

    def _begin(self, needed: int) -> None:
        self._needed = needed
        self._levels = Levels()
        self._stretch = Stretch(self._recent + self._previous)
        self._level = 0.0

    def update(self, residual: float, iteration: int) -> ChangePoint | None:
        """Take the next point; see `Detector`. What is not finite, not positive, or 1,000 times the level is ignored."""
        if not is_time(residual, self._level):
            self.num_ignored += 1
            return None
        self._stretch.add(residual, iteration)
        if len(self._stretch) < self._needed + self._recent:
            return None
        previous = self._stretch.before(self._recent, self._previous)
        before = median(previous) if self._against == "median" else fmean(previous)
        self._level = before
        recent = self._stretch.last(self._recent)
        ratio = fmean(p.value for p in recent) / before
        if 1.0 / self._min_change <= ratio <= self._min_change:
            return None
        changed = _changed(recent, before, 1 if ratio > 1.0 else -1)
        change = self._levels.moved(before, changed, iteration, NAME, ratio)
        self.reason = said(change, f"mean of the last {self._recent} iterations is x{ratio:.3f} of the {self._against} of the {len(previous)} before")
        self._stretch.restart(changed)
        self._needed = MIN_PREVIOUS
        return change


def _changed(recent: list[Point], before: float, sign: int) -> list[Point]:
    """The latest points, from the first one that lies beyond half-way between the level before and the farthest point."""
    farthest = max(recent, key=lambda p: sign * p.value).value
    middle = (before + farthest) / 2
    first = next(i for i, p in enumerate(recent) if (p.value - middle) * sign >= 0)
    return recent[first:]
