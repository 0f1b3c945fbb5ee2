"""CUSUM (Page, Biometrika 41, 1954): the sum of what exceeds an allowance, held at 0 from below, against a threshold. Both ways.

For a known shift and a Gaussian series nothing is quicker at the same rate of false alarms (Lorden 1971; Moustakides 1986).
Given the same care as the default: the same robust level and scatter, the same clipping of spikes.
"""

from __future__ import annotations

from lurcher.detect.baseline import Baseline
from lurcher.detect.levels import Levels, Stretch, is_time, said
from lurcher.records import ChangePoint

NAME = "cusum"
ALLOWANCE = 0.025
"""Half of the smallest change that matters, 5 %: Page's k."""
THRESHOLD = 20.0
"""Page's h, in units of scatter: see bench/detect.py for how it was tuned."""
CLIP_SIGMAS = 3.0
CLIP = 0.06
"""Points count as at most three scatters from the level, or 6 % if that is more (detection.md, section 5, for the default)."""
ARM = 18
_AFTER_REBASE = 5
_KEPT = 200
_FEWEST = 3


class Cusum:
    """Two one-sided sums over (point / level - 1 - allowance) / scatter, each clipped; an alarm begins a new level at the onset."""

    def __init__(self, *, threshold: float = THRESHOLD, allowance: float = ALLOWANCE) -> None:
        self._threshold, self._allowance = threshold, allowance
        self.num_ignored = 0
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._levels = Levels()
        self._stand_on(Baseline(), ARM)
        self.reason = f"learning the level from {ARM} iterations"

    def rebase(self) -> None:
        """Learn the level anew after a change of the job, keep the scatter."""
        self._levels = Levels()
        self._stand_on(Baseline(kept_sigma=self._baseline.sigma if len(self._baseline) else None), _AFTER_REBASE)
        self.reason = "learning the level anew after a change of the job"

    def _stand_on(self, baseline: Baseline, needed: int) -> None:
        self._baseline, self._needed = baseline, needed
        self._stretch = Stretch(_KEPT)
        self._up, self._down = 0.0, 0.0
        self._since_up, self._since_down = 0, 0

    def update(self, residual: float, iteration: int) -> ChangePoint | None:
        """Take the next point; see `Detector`. What is not finite, not positive, or 1,000 times the level is ignored."""
        baseline = self._baseline
        if not is_time(residual, baseline.level):
            self.num_ignored += 1
            return None
        self._stretch.add(residual, iteration)
        if len(baseline) < self._needed:
            baseline.add(residual)
            return None
        sigma = baseline.sigma
        clip = max(CLIP_SIGMAS * sigma, CLIP) / sigma
        z = max(-clip, min(clip, (residual / baseline.level - 1.0) / sigma))
        allowance = self._allowance / sigma
        self._up, self._since_up = _grown(self._up, z - allowance, self._since_up)
        self._down, self._since_down = _grown(self._down, -z - allowance, self._since_down)
        if max(self._up, self._down) <= self._threshold:
            if max(self._up, self._down) < self._threshold / 3:
                baseline.add(residual)
            return None
        return self._alarm(iteration)

    def _alarm(self, iteration: int) -> ChangePoint:
        score, since = max((self._up, self._since_up), (self._down, self._since_down))
        points = self._stretch.last(max(since, _FEWEST))
        change = self._levels.moved(self._baseline.level, points, iteration, NAME, score)
        self.reason = said(
            change, f"the sum over {since} iterations is {score:.0f} > {self._threshold:.0f} times the scatter of {self._baseline.sigma:.1%}"
        )
        self._stand_on(Baseline((p.value for p in points), kept_sigma=self._baseline.sigma), _AFTER_REBASE)
        return change


def _grown(total: float, step: float, since: int) -> tuple[float, int]:
    """Page's recursion, and the points since the sum was last 0: the estimate of the onset."""
    total += step
    return (total, since + 1) if total > 0.0 else (0.0, 0)
