"""Short, high bursts that are over before the detector may confirm anything: worth a line, never an action."""

from __future__ import annotations

from collections import deque
from math import inf, isfinite
from statistics import median
from typing import NamedTuple

import numpy as np

from lurcher.analyze.period import Floats

MIN_SAMPLES = 3
"""One or two high samples are a checkpoint, an evaluation or a restart."""
MIN_HEIGHT = 1.5
"""Times the level before: a sample below is not part of a burst."""
SURE_SAMPLES, SURE_HEIGHT = 5, 3.0
"""A burst has so many samples, or is so high: single spikes of x2 bunch by chance in long healthy runs."""
LEVEL_SAMPLES = 50


class Burst(NamedTuple):
    """Samples `first` to `last` (positions) are at least MIN_HEIGHT times the level before; certain from `detected` on.

    `last` is None where the series ends in it.
    """

    first: int
    last: int | None
    detected: int
    before: float
    level: float


def bursts(values: Floats, longest: int) -> tuple[Burst, ...]:
    """Runs of at least MIN_SAMPLES high samples, each against the median of the samples before it; at `longest` samples a run is cut off, and its
    level is the new one. NaN breaks nothing."""
    found: list[Burst] = []
    calm: deque[float] = deque(maxlen=LEVEL_SAMPLES)
    run: list[int] = []
    line = inf
    for position, value in enumerate(map(float, values)):
        if not isfinite(value):
            continue
        if not run:
            # No median is below the least: most samples need none.
            line = MIN_HEIGHT * median(calm) if len(calm) >= MIN_SAMPLES and value >= MIN_HEIGHT * min(calm) else inf
        if value >= line:
            run.append(position)
            if len(run) < longest:
                continue
        if run:
            found += _burst(values, run, line / MIN_HEIGHT, over=True)
            calm.extend(values[run].tolist() if len(run) >= longest else ())
            run = []
        calm.append(value)
    return (*found, *_burst(values, run, line / MIN_HEIGHT, over=False))


def _burst(values: Floats, run: list[int], before: float, *, over: bool) -> list[Burst]:
    # Judged sample by sample, so that what is said at a moment does not depend on what came after it.
    for length in range(MIN_SAMPLES, min(len(run), SURE_SAMPLES) + 1):
        if length == SURE_SAMPLES or float(np.median(values[run[:length]])) >= SURE_HEIGHT * before:
            return [Burst(run[0], run[-1] if over else None, run[length - 1], before, float(np.median(values[run])))]
    return []
