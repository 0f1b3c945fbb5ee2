"""What an iteration should take for its work: recursive least squares on [1, num_tokens, sum_len_sq], learned while the job runs.

ResiHP, equation 1, is alpha * tokens + beta * sum of squared lengths; the intercept is ours. Taking the work out before the
change test, not as a filter behind it, is the largest single gain on data of variable length (detection.md, section 6).
"""

from __future__ import annotations

from math import isfinite, nan, sqrt
from typing import NamedTuple

FORGETTING = 0.9995
"""Weight of a point against the next: a memory of 2,000 iterations."""
HUBER = 3.0
"""A point moves the fit as if it were at most so many scatters off."""
MIN_POINTS = 12
"""Points before the fit may speak."""
MAX_UNCERTAINTY = 1e4
"""Forgetting stops above this: what the data never vary cannot be learned, and must not grow for ever."""
_PRIOR = 1e2
_SIGMA_FLOOR = 0.004
_SIGMA_START = 0.05
_SIGMA_STEP = 0.02


class _Scale(NamedTuple):
    """The first point's values, by which all others are divided: the fit is then free of units."""

    duration_s: float
    num_tokens: float
    sum_len_sq: float


class WorkloadResidual:
    """Observed / expected duration of each iteration. Constant time and memory; pickles.

    The fit weighs relative errors: a row is divided by its own expectation, so that long iterations do not outvote short ones.
    """

    def __init__(self) -> None:
        self.num_points = 0
        self._scale: _Scale | None = None
        self._fit = (1.0, 0.0, 0.0)
        # Upper triangle of the inverse normal matrix: 11 12 13 22 23 33.
        self._inverse = (_PRIOR, 0.0, 0.0, _PRIOR, 0.0, _PRIOR)
        self._sigma = _SIGMA_START

    @property
    def ready(self) -> bool:
        """Enough points to expect anything."""
        return self.num_points >= MIN_POINTS

    def expected_s(self, num_tokens: float, sum_len_sq: float) -> float:
        """Seconds that this much work should take; NaN while nothing is known."""
        if self._scale is None:
            return nan
        a, b, c = self._fit
        return self._scale.duration_s * (a + b * num_tokens / self._scale.num_tokens + c * sum_len_sq / self._scale.sum_len_sq)

    def update(self, duration_s: float, num_tokens: float, sum_len_sq: float, *, frozen: bool = False) -> float:
        """Observed / expected for this iteration, by what was learned before it; then learn from it unless `frozen` (something is suspect).

        NaN while the fit has fewer than MIN_POINTS points, and for a row that is not finite and positive, which is not learned.
        """
        if not (isfinite(duration_s) and isfinite(num_tokens) and isfinite(sum_len_sq)) or min(duration_s, num_tokens, sum_len_sq) <= 0.0:
            return nan
        if self._scale is None:
            self._scale = _Scale(duration_s, num_tokens, sum_len_sq)
        scale = self._scale
        tokens, squares = num_tokens / scale.num_tokens, sum_len_sq / scale.sum_len_sq
        a, b, c = self._fit
        observed, expected = duration_s / scale.duration_s, a + b * tokens + c * squares
        residual = observed / expected if expected > 0.0 else nan
        if not frozen:
            self._learn(observed, expected if expected > 0.0 else observed, tokens, squares)
        return residual if self.num_points > MIN_POINTS or (frozen and self.ready) else nan

    def _learn(self, observed: float, expected: float, tokens: float, squares: float) -> None:
        self.num_points += 1
        x, y, z = 1.0 / expected, tokens / expected, squares / expected
        a, b, c = self._fit
        error = observed / expected - (a * x + b * y + c * z)
        reach = HUBER * self._sigma if self.ready else 1.0
        clipped = max(-reach, min(reach, error))
        p11, p12, p13, p22, p23, p33 = self._inverse
        u, v, w = p11 * x + p12 * y + p13 * z, p12 * x + p22 * y + p23 * z, p13 * x + p23 * y + p33 * z
        forget = FORGETTING if p11 + p22 + p33 < MAX_UNCERTAINTY else 1.0
        denominator = forget + x * u + y * v + z * w
        self._fit = (a + u * clipped / denominator, b + v * clipped / denominator, c + w * clipped / denominator)
        self._inverse = (
            (p11 - u * u / denominator) / forget,
            (p12 - u * v / denominator) / forget,
            (p13 - u * w / denominator) / forget,
            (p22 - v * v / denominator) / forget,
            (p23 - v * w / denominator) / forget,
            (p33 - w * w / denominator) / forget,
        )
        # Scatter of the clipped errors, followed slowly; clipping at 3 costs a normal sample about 1 % of it.
        step = max(_SIGMA_STEP, 1.0 / (self.num_points + 1)) if self.ready else 0.0
        self._sigma = max(_SIGMA_FLOOR, sqrt((1.0 - step) * self._sigma**2 + step * clipped**2))
