"""The default detector: RDZ-FOCuS (robust, dead zone, FOCuS) with a fast path, in two tiers.

A benign burst of B iterations looks like the begin of a fault, so nothing can confirm before B + 1 points without false
alarms: 3 slow points make a suspicion (free work only), 6 of 7, or a long enough FOCuS segment, confirm. Every test is
relative to the series' own level and scatter; both are frozen while anything is suspect.
"""

from __future__ import annotations

from collections import deque
from itertools import chain, pairwise
from math import isfinite, sqrt
from statistics import median
from typing import Literal, NamedTuple

from lurcher.config import DetectSection
from lurcher.detect.baseline import Baseline, Scale
from lurcher.detect.burst import between_bursts
from lurcher.detect.drift import Anchor, Drift
from lurcher.detect.focus import Segment
from lurcher.detect.memory import Memory
from lurcher.detect.side import CLIP, CLIP_SIGMAS, DEAD_ZONE, Side
from lurcher.records import ChangePoint

NAME = "rdz-focus"
NEAR = 0.02
"""Within this, and the scatter, of the healthy level a series is back at it."""
MIN_MEDIAN = 0.025
"""The median of a segment's latest points must be so far off: spikes can lift a mean, a fault lifts the median."""
FAST_SIGMAS = 3.5
"""The fast path's line in units of scatter. The source has 7, which misses x1.3 at 4 % scatter within 7 points; six of seven
independent points above 3.5 sigma come by chance once in 1e21 normal points."""
HUGE = 1000.0
"""A point this many times the level is a stall or a broken clock, not an iteration time."""
_ABSURD = 1e12
_RING = 16
_DELAY = 8
_RELEARN = 5
"""Points after `rebase` before the detector speaks again."""

State = Literal["learning", "healthy", "suspect", "slow", "worse"]


class _Point(NamedTuple):
    value: float
    iteration: int


class _Onset(NamedTuple):
    """Where a change began: the iteration, and how many points ago that is (the numbers of iterations need not rise)."""

    iteration: int
    num_points: int


class _Pending(NamedTuple):
    """A point that waits to be learned from: its value and iteration, its z and the z before it."""

    value: float
    iteration: int
    z: float
    previous_z: float


class DefaultDetector:
    """Watches one series; see the module's docstring. About 8 KB whatever the length of the series; pickles.

    `state`: learning (too few points to speak), healthy, suspect, slow, or worse (slow, and suspected to have become slower
    still). `reason`: a sentence about it. `num_ignored`: points that were no iteration times.
    """

    def __init__(self, config: DetectSection | None = None) -> None:
        self.config = config if config is not None else DetectSection()
        self._window = (1 << (self.config.confirm_iterations + 1)) - 1
        self._tail = (1 << self.config.suspect_iterations) - 1
        self.num_ignored = 0
        self.reset()

    def reset(self) -> None:
        """Forget everything but the count of ignored points."""
        self._begin(None, self.config.arm_iterations)
        self.reason = f"learning the level from {self.config.arm_iterations} iterations"

    def rebase(self) -> None:
        """The caller changed the job (its layout): learn the level anew from 5 points, keep the scatter, raise no alarm for the change."""
        sigma = self._scatter if self.state == "learning" else self.sigma
        self._begin(sigma, self.config.arm_iterations if sigma is None else _RELEARN)
        self.reason = "learning the level anew after a change of the job"

    def update(self, residual: float, iteration: int) -> ChangePoint | None:
        """Take the next point; `residual` = observed / expected (1.0 healthy), though any positive unit does.

        Returns at most one change. Its `before_s` and `after_s` are levels in the unit of the input, its slowdown is the
        level after it over the healthy one. What is not finite, not positive, or 1,000 times the level is counted and ignored.
        """
        limit = _ABSURD if self.state == "learning" else HUGE * self.level
        if not isfinite(residual) or not 0.0 < residual <= limit:
            self.num_ignored += 1
            return None
        self._ring.append(_Point(residual, iteration))
        if self.state == "learning":
            self._learn(residual)
            if self.state == "learning":
                return None
        else:
            self._feed(residual, iteration)
        return self._slower(iteration) or self._faster(iteration)

    @property
    def level(self) -> float:
        """The level that new points are held against, in the unit of the input."""
        return self._scale.level

    @property
    def sigma(self) -> float:
        """Relative scatter of the series, widened while few points are known."""
        return self._scale.sigma

    @property
    def line(self) -> float:
        """The slowdown over the present level above which a point counts as slow; the level's own standard error comes on top of the scatter."""
        sigma = self._scale.sigma
        return 1.0 + max(self.config.min_slowdown - 1.0, FAST_SIGMAS * sigma) + sigma * sqrt(self._scale.offset(0.0))

    @property
    def drift(self) -> Drift | None:
        """A creep of the healthy level since its first 300 points, if there is one. It raises no alarm."""
        return self._anchor.drift

    # --- learning -------------------------------------------------------------------------------------------------------

    def _begin(self, sigma: float | None, num_points: int) -> None:
        self.state: State = "learning"
        self._healthy: Baseline | None = None  # set aside while slow
        self._num_to_learn = num_points
        self._scatter = sigma  # known from before a rebase
        self._ring: deque[_Point] = deque(maxlen=_RING)
        self._memory = Memory()
        self._anchor = Anchor()
        self._stand_on(Baseline(kept_sigma=sigma))

    def _stand_on(self, baseline: Baseline) -> None:
        """From now on, hold points against another level; the tests begin afresh."""
        self._baseline = baseline
        self._scale: Scale = baseline.scale()
        self._up, self._down = Side(), Side()
        # The latest points beyond the line, one bit each, the newest lowest.
        self._slow_bits, self._fast_bits = 0, 0
        self._last_z = 0.0
        self._pending: deque[_Pending] = deque()

    def _learn(self, residual: float) -> None:
        self._baseline.add(residual)
        self._scale = self._baseline.scale()
        if len(self._baseline) < self._num_to_learn:
            return
        self.state = "healthy"
        stretches = between_bursts(self._baseline.points, self.config.min_slowdown - 1.0)
        self._baseline = Baseline(chain.from_iterable(stretches), kept_sigma=self._scatter)
        self._scale = self._baseline.scale()
        for stretch in stretches:
            zs = [self._z(value / self.level) for value in stretch]
            for previous_z, z in pairwise(zs):
                self._memory.add(z, previous_z)
            self._last_z = zs[-1]
        self.reason = f"level {self.level:.4g}, scatter {self.sigma:.1%} from {len(self._baseline)} iterations"
        for point in self._ring:  # a fault may have begun meanwhile
            self._mark(point.value / self.level, self.line)

    def _mark(self, ratio: float, line: float) -> None:
        self._slow_bits = ((self._slow_bits << 1) | (ratio > line)) & self._window
        self._fast_bits = ((self._fast_bits << 1) | (ratio * line < 1.0)) & self._window

    def _feed(self, residual: float, iteration: int) -> None:
        scale = self._scale
        ratio = residual / scale.level
        self._mark(ratio, self.line)
        self._up.feed(ratio - 1.0, iteration, scale, self._memory)
        self._down.feed(1.0 / ratio - 1.0, iteration, scale, self._memory)
        if self.state in ("suspect", "worse") or self._up.watched is not None or self._down.watched is not None:
            self._pending.clear()
            return
        # A point is learned from late, when the tests have seen that nothing came after it.
        z = self._z(ratio)
        self._pending.append(_Pending(residual, iteration, z, self._last_z))
        self._last_z = z
        if len(self._pending) > _DELAY:
            self._take(self._pending.popleft())

    def _z(self, ratio: float) -> float:
        """Distance from the level in units of the scatter, a spike clipped."""
        clip = max(CLIP_SIGMAS * self._scale.sigma, CLIP)
        return max(-clip, min(clip, ratio - 1.0)) / self._scale.sigma

    def _take(self, point: _Pending) -> None:
        """Learn from a point that nothing speaks against."""
        self._baseline.add(point.value)
        self._memory.add(point.z, point.previous_z)
        self._scale = self._baseline.scale()
        if self._healthy is None and self._anchor.add(point.value, point.iteration) and self.drift is not None:
            self.reason = f"the level has crept up to x{self.drift.slowdown:.3f} since iteration {self.drift.since}, without a step"

    # --- tests ----------------------------------------------------------------------------------------------------------

    def _segment(self, side: Side) -> Segment | None:
        """The segment of one direction that alarms, if one does."""
        found = side.alarming(self._scale, self._memory)
        if found is None:
            return None
        middle = median(self._last(found.length)) / self.level
        return found if max(middle, 1.0 / middle) >= 1.0 + MIN_MEDIAN else None

    def _slower(self, iteration: int) -> ChangePoint | None:
        recent = self._slow_bits.bit_count()
        if recent >= self.config.confirm_iterations:
            said = f"{recent} of the last {self.config.confirm_iterations + 1} iterations are above x{self.line:.3f} (scatter {self.sigma:.1%})"
            return self._confirm("slower", self._onset(1), iteration, float(recent), said)
        segment = self._segment(self._up)
        if segment is not None:
            said = f"{segment.length} iterations, {segment.fraction:.0%} of them above the dead zone of {DEAD_ZONE:.1%}, score {segment.score:.0f}"
            return self._confirm("slower", _Onset(segment.iteration, segment.length), iteration, segment.score, said)
        if self.state in ("healthy", "slow"):
            if self._slow_bits & self._tail == self._tail:
                self.state = "suspect" if self.state == "healthy" else "worse"
                return self._suspect(self._onset(1), iteration)
        elif recent < self.config.suspect_iterations:
            self.state = "healthy" if self.state == "suspect" else "slow"
            self.reason = "the suspicion passed: too few of the last iterations are slow"
        return None

    def _faster(self, iteration: int) -> ChangePoint | None:
        recent = self._fast_bits.bit_count()
        if recent >= self.config.confirm_iterations:
            said = f"{recent} of the last {self.config.confirm_iterations + 1} iterations are below x{1 / self.line:.3f} of the level before"
            return self._confirm("faster", self._onset(-1), iteration, float(recent), said)
        segment = self._segment(self._down)
        if segment is not None:
            said = f"{segment.length} iterations, {segment.fraction:.0%} of them clearly below the level before, score {segment.score:.0f}"
            return self._confirm("faster", _Onset(segment.iteration, segment.length), iteration, segment.score, said)
        return None

    def _onset(self, sign: int) -> _Onset:
        """First point of the latest stretch beyond half-way to the new level, one stray point allowed; FOCuS where the ring is too short."""
        points = list(self._ring)
        after = median(p.value for p in points[-self.config.suspect_iterations :])
        middle = (self.level + after) / 2
        first, strays = len(points) - 1, 0
        for i in range(len(points) - 1, -1, -1):
            if (points[i].value - middle) * sign > 0:
                first = i
            else:
                strays += 1
                if strays > 1:
                    break
        best = (self._up if sign > 0 else self._down).longest()
        if first == 0 and best.length > len(points):
            return _Onset(best.iteration, best.length)
        return _Onset(points[first].iteration, len(points) - first)

    def _last(self, num_points: int) -> list[float]:
        """The latest values, at most as many as the ring holds."""
        return [p.value for p in list(self._ring)[-num_points:]]

    # --- verdicts -------------------------------------------------------------------------------------------------------

    def _suspect(self, onset: _Onset, iteration: int) -> ChangePoint:
        after = median(self._last(onset.num_points))
        num = self.config.suspect_iterations
        self.reason = f"{num} iterations in a row are above x{self.line:.3f} (scatter {self.sigma:.1%}), since iteration {onset.iteration}"
        reference = self._healthy.level if self._healthy is not None else self.level
        return ChangePoint(onset.iteration, iteration, self.level, after, after / reference, "slower", "suspect", NAME, float(num))

    def _confirm(self, direction: Literal["slower", "faster"], onset: _Onset, iteration: int, score: float, said: str) -> ChangePoint:
        points = self._last(onset.num_points)
        before, after = self.level, median(points)
        healthy = self._healthy if self._healthy is not None else self._baseline
        reference, sigma, *_ = healthy.scale()
        fresh = Baseline(points, kept_sigma=sigma)
        self._ring.clear()
        near = NEAR + sigma
        if direction == "slower" or after > reference * (1.0 + near):
            self.state, self._healthy = "slow", healthy
            self._stand_on(fresh)
        else:
            # Back to the level of before; or below it, and then that level was not the healthy one.
            back = after > reference / (1.0 + near)
            self.state, self._healthy = "healthy", None
            self._anchor = self._anchor if back else Anchor()
            self._stand_on(healthy if back else fresh)
        slowdown = after / reference
        self.reason = f"{said}: level {before:.4g} -> {after:.4g} from iteration {onset.iteration}, x{slowdown:.2f} of the healthy level"
        return ChangePoint(onset.iteration, iteration, before, after, slowdown, direction, "confirmed", NAME, score)
