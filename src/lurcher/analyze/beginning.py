"""What the detector cannot see because it learns its level from the first samples: series that are slow from the start, or too short to learn from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lurcher.analyze.period import Floats, Ints, Period
from lurcher.records import ChangePoint

WARMUP = 3
"""First samples, which any job may need longer for."""
FROM_START = 1.05
"""A series that should be 1.0 is slow from the start above this: runs of the same code differ by up to 2.5 % (nanoGPT speed runs)."""
RETURN = 1.03
"""And back to it below this."""
SHORT_RISE = 1.04
CALM_SAMPLES, SLOW_SAMPLES = 3, 2
TIMES_RANGE = 3.0
"""In a short series the rise must be so many times the range of all samples before it."""


def from_start(iterations: Ints, residuals: Floats, changes: Sequence[ChangePoint], num_samples: int) -> Period | None:
    """The slow period that begins with the first sample, where a healthy residual is known to be 1.0; None if there is none.

    Judged on the first `num_samples` samples without the warm-up, nine in ten of which must be slow. It ends where a change brings the series
    back to 1.0.
    """
    known = np.flatnonzero(np.isfinite(residuals))[:num_samples]
    if len(known) < num_samples:
        return None
    judged = residuals[known[WARMUP:]]
    if np.median(judged) <= FROM_START or np.mean(judged > 1.0 + (FROM_START - 1.0) / 2) < 0.9:
        return None
    back = next((c for c in changes if c.direction == "faster" and c.after_s < RETURN), None)
    last = None if back is None else max(0, int(np.searchsorted(iterations, back.iteration)) - 1)
    level = float(np.nanmedian(residuals[: None if last is None else last + 1]))
    return Period(0, last, int(iterations[known[-1]]), 1.0, level, None, ())


def rises_at_the_end(iterations: Ints, values: Floats) -> Period | None:
    """The lasting rise at the end of a series that is too short for the detector; None unless it is as plain as can be.

    At least CALM_SAMPLES before it and SLOW_SAMPLES in it, all of these above all of those, by SHORT_RISE and TIMES_RANGE
    times the range of the samples before. The earliest such rise counts.
    """
    known = np.flatnonzero(np.isfinite(values))
    for place in range(CALM_SAMPLES, len(known) - SLOW_SAMPLES + 1):
        calm, slow = values[known[:place]], values[known[place:]]
        before = float(np.median(calm))
        rise = float(slow.min()) - before
        if rise > (SHORT_RISE - 1.0) * before and rise > TIMES_RANGE * float(np.ptp(calm)):
            detected = int(iterations[known[place + SLOW_SAMPLES - 1]])
            return Period(int(known[place]), None, detected, before, float(np.median(slow)), None, ())
    return None
