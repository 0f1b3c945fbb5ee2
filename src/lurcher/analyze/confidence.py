"""How sure a name is: 0 to 1. Calibrated by `bench/fleet.py`: of suspects at 0.9 or more, at least 90 % are right."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, sqrt

NO_HISTORY = 0.5
"""A rank that was never seen healthy may be slower for good reasons: other hardware, other work."""
HISTORY, SLOW = 30.0, 12.0
"""Samples before and samples inside a period that leave 1/e of the doubt that few samples leave."""
SIZE = 8.0
"""Standard errors of the period's mean that leave as much; samples hang together, so no more than"""
MOST_SAMPLES = 50
"""count for that."""
ALIKE = 0.7
"""At most this for one of several that rose alike."""
HALF = 0.5


def confidence_of(slowdown: float, *, noise: float, num_slow: int, num_before: int) -> float:
    """Confidence in a component with a history: the more samples on either side and the higher above the scatter, the less doubt is left.

    noise: relative scatter of a healthy sample. num_slow, num_before: samples in the period and before it.
    """
    if num_before == 0:
        return NO_HISTORY
    doubt = exp(-num_before / HISTORY) + exp(-num_slow / SLOW) + exp(-(slowdown - 1.0) / noise * sqrt(min(num_slow, MOST_SAMPLES)) / SIZE)
    return round(max(NO_HISTORY, 1.0 - 0.5 * doubt), 3)


def is_smear(slowdown: float, others: Sequence[float]) -> bool:
    """Whether a rank rose by less than half of what another did at the same time: a tensor mate waits in its collectives for the slow one, and takes
    part of that for its own time. The rule of localize/cohort.py, where the layout is known."""
    return slowdown - 1.0 < HALF * (max(others, default=1.0) - 1.0)


def rose_alike(slowdown: float, others: Sequence[float]) -> int:
    """How many of the others rose by more than half as much at the same time. They have something in common, which need not be a fault: a stage that
    was given more work does the same."""
    return sum(HALF * (slowdown - 1.0) < other - 1.0 for other in others)
