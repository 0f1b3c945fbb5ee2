"""How slow a part must be to be a suspect."""

from __future__ import annotations

from math import log, sqrt

ALPHA = 1e-4
"""Chance that a healthy job with normal scatter has any part over the line; the line grows with sqrt(log(parts)) to keep it."""


def line_for(num: int, noise: float, min_slowdown: float) -> float:
    """The slowdown over which one of `num` is a suspect: `min_slowdown`, or the normal quantile for ALPHA / num where that is more."""
    return max(min_slowdown, 1.0 + noise * sqrt(2.0 * log(max(1, num) / ALPHA)))
