"""Work that comes back every so many iterations: optimizer, checkpoint, evaluation. One sentence, never an event."""

from __future__ import annotations

from collections import Counter

import numpy as np

from lurcher.analyze.period import Floats, Ints

HIGH = 1.25
"""Times the median: what is less is scatter."""
LEAST_TIMES = 8
MOST_SHARE = 0.34
"""Of samples that may be high for them to be an extra, and not the rule."""
REGULAR = 0.75
"""Of the high samples that must stand at multiples of one period."""
MOST_BY_CHANCE = 0.5
"""And of the multiples of the period within the series that must be high."""


def periodic_work(iterations: Ints, values: Floats) -> str:
    """A sentence on the one period that explains most high samples, or "" where there is none.

    iterations: the input's own numbers. values: durations or residuals, NaN unknown.
    """
    good = np.isfinite(values)
    if good.sum() < 4 * LEAST_TIMES:
        return ""
    numbers, ratio = iterations[good], values[good] / np.median(values[good])
    high = numbers[ratio > HIGH]
    if not LEAST_TIMES <= len(high) <= MOST_SHARE * len(numbers):
        return ""
    period = Counter(np.diff(high).tolist()).most_common(1)[0][0]
    phase = Counter((high % period).tolist()).most_common(1)[0][0]
    at_phase = numbers % period == phase
    hits = (ratio > HIGH) & at_phase
    if period < 2 * int(np.diff(numbers).min()) or hits.sum() < REGULAR * len(high) or hits.sum() < MOST_BY_CHANCE * at_phase.sum():
        return ""
    return f"every {_ordinal(int(period))} iteration takes x{float(np.median(ratio[hits])):.2f}: periodic work (optimizer, checkpoint, evaluation), no fault"


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
