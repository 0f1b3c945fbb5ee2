"""What an iteration should take for its work: recursive least squares on [1, num_tokens, sum_len_sq], learned while the job runs.

ResiHP, equation 1, is alpha * tokens + beta * sum of squared lengths; the intercept is ours. Taking the work out before the
change test, not as a filter behind it, is the largest single gain on data of variable length (detection.md, section 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import isfinite, nan, sqrt
from statistics import median
from typing import NamedTuple

FORGETTING = 0.9995
"""Weight of a point against the next: a memory of 2,000 iterations."""
HUBER = 3.0
"""A point moves the fit as if it were at most so many scatters off."""
MIN_POINTS = 12
"""Points before the fit may speak."""
MAX_UNCERTAINTY = 1e4
"""Forgetting stops above this: what the data never vary cannot be learned, and must not grow for ever."""
MOST_WEIGHT = 4.0
FIRST_ROUNDS = 4
"""Times that the first rows are fitted after that, each with what lies far off drawn nearer to the fit before (Huber, Robust Statistics, 1981,
section 7.8: modified residuals). A checkpoint among twelve rows would tilt a plain fit by ten percent, and the level would creep for 100 iterations."""
_FAR = 1e9
_START = (1.0, 0.0, 0.0)
_PRIOR = 1e2
_NO_INVERSE = (_PRIOR, 0.0, 0.0, _PRIOR, 0.0, _PRIOR)
_QUARTILE = 1.15
"""Three quarters of normal points lie within so many scatters."""
_SIGMA_FLOOR = 0.004
_SIGMA_START = 0.05
_SIGMA_STEP = 0.02


class _Row(NamedTuple):
    """One iteration: its duration and its work."""

    duration_s: float
    num_tokens: float
    sum_len_sq: float


class WorkloadResidual:
    """Observed / expected duration of each iteration. Constant time and memory; pickles.

    The first MIN_POINTS rows are kept and fitted together, in units of their medians, so that a quarter of them may be wrong: one by one, a fit of
    three numbers to three rows is wild, and the first iteration of a job takes 10 to 100 times as long as the others. After that a row is
    divided by its own expectation, so that long iterations do not outvote short ones.
    """

    def __init__(self) -> None:
        self.num_points = 0
        self._first: list[_Row] = []
        self._scale: _Row | None = None
        self._fit = _START
        # Upper triangle of the inverse normal matrix: 11 12 13 22 23 33.
        self._inverse = _NO_INVERSE
        self._sigma = _SIGMA_START

    @property
    def ready(self) -> bool:
        """Enough points to expect anything."""
        return self._scale is not None

    def expected_s(self, num_tokens: float, sum_len_sq: float) -> float:
        """Seconds that this much work should take; NaN while nothing is known."""
        if self._scale is None:
            return nan
        a, b, c = self._fit
        return self._scale.duration_s * (a + b * num_tokens / self._scale.num_tokens + c * sum_len_sq / self._scale.sum_len_sq)

    def update(self, duration_s: float, num_tokens: float, sum_len_sq: float, *, frozen: bool = False) -> float:
        """Observed / expected for this iteration, by what was learned before it; then learn from it unless `frozen` (something is suspect).

        NaN for the first MIN_POINTS points, and for a row that is not finite and positive, which is not learned.
        """
        if not (isfinite(duration_s) and isfinite(num_tokens) and isfinite(sum_len_sq)) or min(duration_s, num_tokens, sum_len_sq) <= 0.0:
            return nan
        scale = self._scale
        if scale is None:
            if not frozen:
                self._begin(_Row(duration_s, num_tokens, sum_len_sq))
            return nan
        observed, tokens, squares = duration_s / scale.duration_s, num_tokens / scale.num_tokens, sum_len_sq / scale.sum_len_sq
        a, b, c = self._fit
        expected = a + b * tokens + c * squares
        if not frozen:
            self.num_points += 1
            self._learn(observed, expected, tokens, squares, HUBER * self._sigma)
        return observed / expected if expected > 0.0 else nan

    def _begin(self, row: _Row) -> None:
        self._first.append(row)
        self.num_points += 1
        if len(self._first) < MIN_POINTS:
            return
        self._scale = scale = _Row(*(median(column) for column in zip(*self._first, strict=True)))
        rows = [_Row(r.duration_s / scale.duration_s, r.num_tokens / scale.num_tokens, r.sum_len_sq / scale.sum_len_sq) for r in self._first]
        self._first.clear()
        # Least quantile of squares (Rousseeuw, JASA 79, 1984): of the fits to three rows each, the one that three quarters are nearest to.
        expected = min((self._fit_together(three, rows) for three in combinations(rows, 3)), key=lambda fit: _error(rows, fit))
        for _ in range(FIRST_ROUNDS):
            reach = HUBER * max(_SIGMA_FLOOR, _error(rows, expected) / _QUARTILE)
            drawn = [row._replace(duration_s=min(e + reach, max(e - reach, row.duration_s))) for row, e in zip(rows, expected, strict=True)]
            expected = self._fit_together(drawn, rows)
        self._sigma = _SIGMA_START

    def _fit_together(self, rows: Sequence[_Row], at: Sequence[_Row]) -> list[float]:
        """Fit some rows afresh; the durations expected at others."""
        self._fit, self._inverse = _START, _NO_INVERSE
        for row in rows:
            self._learn(row.duration_s, 1.0, row.num_tokens, row.sum_len_sq, _FAR)
        a, b, c = self._fit
        return [a + b * row.num_tokens + c * row.sum_len_sq for row in at]

    def _learn(self, observed: float, expected: float, tokens: float, squares: float, reach: float) -> None:
        # Bounded, or a row whose expectation happens to be next to nothing would outweigh all others.
        weight = 1.0 / min(MOST_WEIGHT, max(1.0 / MOST_WEIGHT, expected))
        x, y, z = weight, tokens * weight, squares * weight
        a, b, c = self._fit
        clipped = max(-reach, min(reach, observed * weight - (a * x + b * y + c * z)))
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
        step = max(_SIGMA_STEP, 1.0 / (self.num_points + 1))
        self._sigma = max(_SIGMA_FLOOR, sqrt((1.0 - step) * self._sigma**2 + step * clipped**2))


def _error(rows: Sequence[_Row], expected: Sequence[float]) -> float:
    """What three quarters of the rows are within of their expectation."""
    return sorted(abs(row.duration_s - e) for row, e in zip(rows, expected, strict=True))[3 * len(rows) // 4 - 1]
