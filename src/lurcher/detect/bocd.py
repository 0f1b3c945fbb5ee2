"""Bayesian online change-point detection (Adams and MacKay 2007, arXiv 0710.3742), alone and with GREYHOUND's verification.

Numbered after the paper's Algorithm 1: (3) predictive, (4) growth, (5) change, (6) evidence, (7) run lengths, (8) statistics.
The points of a run are normal with unknown mean and precision under a normal-gamma prior, so the predictive is Student's t
(Murphy 2007, equations 85 to 100). Everything is in logarithms, and run lengths beyond a bound are merged.

GREYHOUND reports when P(r = 0) > 0.9, which with a constant hazard always equals the hazard; here it is the mass of the
run lengths r <= k, and a run needs 3 points to have a mean. GREYHOUND then drops what changed the mean by less than 10 %.
"""

from __future__ import annotations

from math import lgamma, log, pi
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from lurcher.detect.baseline import Baseline
from lurcher.detect.levels import Levels, Stretch, is_time, said
from lurcher.records import ChangePoint

Floats = NDArray[np.float64]

NAME = "bocd"
NAME_VERIFIED = "bocd-verified"
MASS = 0.9
"""GREYHOUND, section on detection: report above a probability of 0.9."""
MIN_CHANGE = 1.10
"""The same: the mean before and after must differ by 10 % or more."""
MEAN_RUN = 250.0
"""1 / hazard. GREYHOUND gives none."""
SHORT = 9
"""k of the mass of r <= k."""
FEWEST = 3
"""Points of a new run before it is reported (GREYHOUND: a reaction of two or three iterations)."""
MAX_RUN = 250
ARM = 18
_AFTER_REBASE = 5
_BEFORE = 50
_PRIOR_KAPPA = 0.01
"""A new run's mean lies within about ten scatters of the level."""
_PRIOR_ALPHA = 2.0
_CALM = 0.5
"""A change is reported once: the mass must fall below this before the next."""


class RunLengths:
    """The posterior over run lengths 0..max_run of a series with level 1 and scatter `sigma`: Algorithm 1 of the paper.

    Entry r of every array belongs to the run that holds the latest r points. The longest entry also holds the mass of all
    longer runs, and its statistics stay those of about `max_run` points.
    """

    def __init__(self, sigma: float, *, mean_run: float = MEAN_RUN, max_run: int = MAX_RUN) -> None:
        num = np.arange(max_run + 1, dtype=np.float64)
        self._kappa: Floats = _PRIOR_KAPPA + num
        self._alpha: Floats = _PRIOR_ALPHA + num / 2
        # The part of Student's log density that the run length alone decides.
        gammas = np.array([lgamma(a + 0.5) - lgamma(a) for a in self._alpha], dtype=np.float64)
        self._constant: Floats = gammas + 0.5 * np.log(self._kappa / (self._kappa + 1) / (2 * pi)).astype(np.float64)
        self._prior_beta = _PRIOR_ALPHA * sigma * sigma
        self._log_hazard, self._log_growth = log(1 / mean_run), log(1 - 1 / mean_run)
        # (1) Before the first point the run length is 0.
        self.log_mass: Floats = np.full(max_run + 1, -np.inf)
        self.log_mass[0] = 0.0
        self._mean: Floats = np.ones(max_run + 1)
        self._beta: Floats = np.full(max_run + 1, self._prior_beta)

    def update(self, x: float) -> None:
        """(2) Take one point."""
        kappa, beta = self._kappa, self._beta
        off = x - self._mean
        # (3) Student's t with 2 alpha degrees of freedom and scale beta (kappa + 1) / (alpha kappa).
        widened = off * off * kappa / (2 * (kappa + 1))
        predictive = self._constant - 0.5 * np.log(beta) - (self._alpha + 0.5) * np.log1p(widened / beta)
        joint = self.log_mass + predictive
        top = float(joint.max())
        joint = joint - top
        # (5) Whatever the run length was, it may have ended. (4) Or it goes on. (6, 7) Normalised by their sum: the top alone was taken out above.
        whole = log(float(np.exp(joint).sum()))
        grown = joint + (self._log_growth - whole)
        self.log_mass[1:] = grown[:-1]
        self.log_mass[-1] = np.logaddexp(self.log_mass[-1], grown[-1])
        self.log_mass[0] = self._log_hazard
        # (8) The sufficient statistics move up by one; the longest keeps its own.
        mean = self._mean + off / (kappa + 1)
        beta = beta + widened
        self._mean[1:-1], self._beta[1:-1] = mean[:-2], beta[:-2]
        # The merged entry forgets as it learns, so that its count stays that of its run length.
        self._mean[-1] = mean[-1]
        self._beta[-1] = beta[-1] * self._alpha[-1] / (self._alpha[-1] + 0.5)
        self._mean[0], self._beta[0] = 1.0, self._prior_beta

    def mass_up_to(self, k: int) -> float:
        """P(r <= k)."""
        return float(np.exp(self.log_mass[: k + 1]).sum())

    def likeliest(self, k: int) -> int:
        """The most probable run length of 1..k."""
        return 1 + int(self.log_mass[1 : k + 1].argmax())


class Bocd:
    """Adams and MacKay's detector. With `min_change`, GREYHOUND's: a change of the mean below it is dropped as jitter."""

    def __init__(
        self, *, min_change: float = 1.0, mass: float = MASS, short: int = SHORT, mean_run: float = MEAN_RUN, max_run: int = MAX_RUN
    ) -> None:
        self._min_change, self._mass, self._short = min_change, mass, short
        self._mean_run, self._max_run = mean_run, max_run
        self._name = NAME if min_change <= 1.0 else NAME_VERIFIED
        self.num_ignored = 0
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._levels = Levels()
        self._begin(Baseline(), ARM)
        self.reason = f"learning the scale of the series from {ARM} iterations"

    def rebase(self) -> None:
        """Begin anew after a change of the job, keep the scatter."""
        self._levels = Levels()
        self._begin(Baseline(kept_sigma=self._scale.sigma if len(self._scale) else None), _AFTER_REBASE)
        self.reason = "learning the scale anew after a change of the job"

    def _begin(self, scale: Baseline, needed: int) -> None:
        self._scale, self._needed = scale, needed
        self._stretch = Stretch(_BEFORE + self._short + 1)
        self._runs: RunLengths | None = None
        self._calm = False

    def update(self, residual: float, iteration: int) -> ChangePoint | None:
        """Take the next point; see `Detector`. What is not finite, not positive, or 1,000 times the level is ignored."""
        if not is_time(residual, self._scale.level):
            self.num_ignored += 1
            return None
        self._stretch.add(residual, iteration)
        if self._runs is None:
            self._learn_scale(residual)
            return None
        self._runs.update(residual / self._scale.level)
        mass = self._runs.mass_up_to(self._short)
        if mass < _CALM:
            self._calm = True
            return None
        if not self._calm or mass <= self._mass:
            return None
        run = self._runs.likeliest(self._short)
        return self._report(run, mass, iteration) if run >= FEWEST else None

    def _learn_scale(self, residual: float) -> None:
        self._scale.add(residual)
        if len(self._scale) < self._needed:
            return
        self._runs = RunLengths(self._scale.sigma, mean_run=self._mean_run, max_run=self._max_run)
        for point in self._stretch.last(self._needed):
            self._runs.update(point.value / self._scale.level)

    def _report(self, run: int, mass: float, iteration: int) -> ChangePoint | None:
        self._calm = False
        points = self._stretch.last(run)
        before = fmean(self._stretch.before(run, _BEFORE))
        after = fmean(p.value for p in points)
        if max(before / after, after / before) < self._min_change:
            self.reason = (
                f"dropped as jitter: level {before:.4g} -> {after:.4g} from iteration {points[0].iteration}, less than {self._min_change - 1:.0%}"
            )
            return None
        change = self._levels.moved(before, points, iteration, self._name, mass)
        self.reason = said(change, f"P(run length <= {self._short}) = {mass:.3f} > {self._mass:g}")
        self._stretch.restart(points)
        return change


def greyhound() -> Bocd:
    """BOCD with verification, as GREYHOUND states it: 0.9 and 10 %."""
    return Bocd(min_change=MIN_CHANGE)
