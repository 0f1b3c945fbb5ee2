"""The default detector: RDZ-FOCuS (robust, dead zone, FOCuS) with a fast path, in two tiers.

A benign burst of B iterations looks like the begin of a fault, so nothing can confirm before B + 1 points without false
alarms: 3 slow points make a suspicion (free work only), 6 of 7, or a long enough FOCuS segment, confirm. Every test is
relative to the series' own level and scatter; both are frozen while anything is suspect.
"""

from __future__ import annotations

from collections import deque
from math import isfinite, sqrt
from statistics import median
from typing import Literal, NamedTuple

from lurcher.config import DetectSection
from lurcher.detect.baseline import CAPACITY, Baseline
from lurcher.detect.focus import Focus
from lurcher.records import ChangePoint

NAME = "rdz-focus"
DEAD_ZONE = 0.02
"""Smaller rises are drift, not faults (detection.md, section 5: 2 %)."""
THRESHOLD = 25.0
"""FOCuS alarm (same section; 18 gave false alarms on periodic work)."""
MIN_LENGTH = 7
MIN_FRACTION = 0.8
"""A FOCuS segment needs 7 points, 80 % of them above the dead zone: immunity to bursts and spikes (same section)."""
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


class DefaultDetector:
    """Watches one series; see the module's docstring. About 4 KB whatever the length of the series; pickles.

    `state`: learning (too few points to speak), healthy, suspect, slow, or worse (slow, and suspected to have become slower
    still). `reason`: a sentence about it. `num_ignored`: points that were no iteration times.
    """

    def __init__(self, config: DetectSection | None = None) -> None:
        self.config = config if config is not None else DetectSection()
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
        return self._baseline.level

    @property
    def sigma(self) -> float:
        """Relative scatter of the series, widened while few points are known."""
        return self._baseline.sigma

    @property
    def line(self) -> float:
        """The slowdown over the present level above which a point counts as slow."""
        return 1.0 + max(self.config.min_slowdown - 1.0, FAST_SIGMAS * self.sigma) + self._baseline.level_error

    # --- learning -------------------------------------------------------------------------------------------------------

    def _begin(self, sigma: float | None, num_points: int) -> None:
        self.state: State = "learning"
        self._healthy: Baseline | None = None  # set aside while slow
        self._num_to_learn = num_points
        self._scatter = sigma  # known from before a rebase
        self._ring: deque[_Point] = deque(maxlen=_RING)
        self._correlation = (0.0, 0.0, 0)  # lag-1 products, squares, number
        self._stand_on(Baseline(kept_sigma=sigma))

    def _stand_on(self, baseline: Baseline) -> None:
        """From now on, hold points against another level; the tests begin afresh."""
        self._baseline = baseline
        self._up, self._down = Focus(), Focus()
        self._statistic = 0.0
        self._last_z = 0.0
        self._pending: deque[tuple[float, float, float]] = deque()  # value, its z, the z before

    def _learn(self, residual: float) -> None:
        self._baseline.add(residual)
        if len(self._baseline) >= self._num_to_learn:
            self.state = "healthy"
            self.reason = f"level {self.level:.4g}, scatter {self.sigma:.1%} from {len(self._baseline)} iterations"

    def _feed(self, residual: float, iteration: int) -> None:
        sigma, level = self.sigma, self.level
        dead = DEAD_ZONE + 2.0 * self._baseline.level_error
        clip = max(3.0 * sigma, 3.0 * DEAD_ZONE)
        up = min(clip, residual / level - 1.0)
        down = min(clip, level / residual - 1.0)
        self._statistic = self._up.update((max(-clip, up) - dead) / sigma, iteration)
        fall = self._down.update((max(-clip, down) - dead) / sigma, iteration)
        if self.state in ("suspect", "worse") or max(self._statistic, fall) / self._inflation() >= THRESHOLD / 3:
            self._pending.clear()
            return
        # A point is learned from late, when the tests have seen that nothing came after it.
        z = max(-clip, up) / sigma
        self._pending.append((residual, z, self._last_z))
        self._last_z = z
        if len(self._pending) > _DELAY:
            value, z, previous = self._pending.popleft()
            self._baseline.add(value)
            product, square, number = self._correlation
            rate = 1.0 / min(number + 1, 2 * CAPACITY)
            self._correlation = (product + rate * (z * previous - product), square + rate * (z * z - square), number + 1)

    def _inflation(self) -> float:
        """Variance inflation of a sum by lag-1 correlation phi: (1 + phi) / (1 - phi); phi is widened by its own error and capped at 0.9."""
        product, square, number = self._correlation
        phi = (product / square if square > 0 else 0.0) + 1.0 / sqrt(number + 10)
        phi = min(0.9, max(0.0, phi))
        return (1.0 + phi) / (1.0 - phi)

    # --- tests ----------------------------------------------------------------------------------------------------------

    def _slower(self, iteration: int) -> ChangePoint | None:
        line, window = self.level * self.line, self.config.confirm_iterations + 1
        slow = [p.value > line for p in self._ring]
        recent = sum(slow[-window:])
        segment = self._up.best(MIN_LENGTH, MIN_FRACTION)
        score = segment.score / self._inflation()
        if recent >= self.config.confirm_iterations:
            said = f"{recent} of the last {window} iterations are above x{self.line:.3f} (scatter {self.sigma:.1%})"
            return self._confirm("slower", self._onset(iteration, 1), iteration, float(recent), said)
        if score > THRESHOLD:
            said = f"{segment.length} iterations, {segment.fraction:.0%} of them above the {DEAD_ZONE:.0%} dead zone, score {score:.0f} > {THRESHOLD:.0f}"
            return self._confirm("slower", segment.iteration, iteration, score, said)
        tail = slow[-self.config.suspect_iterations :]
        if self.state in ("healthy", "slow") and len(tail) == self.config.suspect_iterations and all(tail):
            self.state = "suspect" if self.state == "healthy" else "worse"
            return self._suspect(self._onset(iteration, 1), iteration)
        if self.state in ("suspect", "worse") and recent < min(self.config.suspect_iterations, window):
            self.state = "healthy" if self.state == "suspect" else "slow"
            self.reason = "the suspicion passed: too few of the last iterations are slow"
        return None

    def _faster(self, iteration: int) -> ChangePoint | None:
        line, window = self.level / self.line, self.config.confirm_iterations + 1
        recent = sum(p.value < line for p in list(self._ring)[-window:])
        segment = self._down.best(MIN_LENGTH, MIN_FRACTION)
        score = segment.score / self._inflation()
        if recent >= self.config.confirm_iterations:
            said = f"{recent} of the last {window} iterations are below x{1 / self.line:.3f} of the level before"
            return self._confirm("faster", self._onset(iteration, -1), iteration, float(recent), said)
        if score > THRESHOLD:
            said = f"{segment.length} iterations, {segment.fraction:.0%} of them clearly below the level before, score {score:.0f} > {THRESHOLD:.0f}"
            return self._confirm("faster", segment.iteration, iteration, score, said)
        return None

    def _onset(self, iteration: int, sign: int) -> int:
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
        best = (self._up if sign > 0 else self._down).best(MIN_LENGTH, MIN_FRACTION)
        if first == 0 and best.length > len(points):
            return best.iteration
        return points[first].iteration if points else iteration

    # --- verdicts -------------------------------------------------------------------------------------------------------

    def _suspect(self, onset: int, iteration: int) -> ChangePoint:
        after = median(p.value for p in self._ring if p.iteration >= onset)
        num = self.config.suspect_iterations
        self.reason = f"{num} iterations in a row are above x{self.line:.3f} (scatter {self.sigma:.1%}), since iteration {onset}"
        reference = self._healthy.level if self._healthy is not None else self.level
        return ChangePoint(onset, iteration, self.level, after, after / reference, "slower", "suspect", NAME, float(num))

    def _confirm(self, direction: Literal["slower", "faster"], onset: int, iteration: int, score: float, said: str) -> ChangePoint:
        points = [p.value for p in self._ring if p.iteration >= onset]
        before, after = self.level, median(points)
        healthy = self._healthy if self._healthy is not None else self._baseline
        reference = healthy.level
        sigma = healthy.sigma
        fresh = Baseline(points, kept_sigma=sigma)
        self._ring.clear()
        near = DEAD_ZONE + sigma
        if direction == "slower" or after > reference * (1.0 + near):
            self.state, self._healthy = "slow", healthy
            self._stand_on(fresh)
        else:
            # Back to the level of before; or below it, and then that level was not the healthy one.
            restored = healthy if after > reference / (1.0 + near) else fresh
            self.state, self._healthy = "healthy", None
            self._stand_on(restored)
        slowdown = after / reference
        self.reason = f"{said}: level {before:.4g} -> {after:.4g} from iteration {onset}, x{slowdown:.2f} of the healthy level"
        return ChangePoint(onset, iteration, before, after, slowdown, direction, "confirmed", NAME, score)
