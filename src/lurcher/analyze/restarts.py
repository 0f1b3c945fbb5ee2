"""Restarts by their shape: a slow sample, and a lower level from then on. They end a creep of the software's own making, and are no fault."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

import numpy as np

from lurcher.analyze.period import Floats

SPIKE = 1.5
"""Times the level before; starting a job takes longer than any iteration."""
DROP = 0.95
"""The level after a restart over the one before is at most this: a checkpoint or an evaluation changes no level."""
MOST_SAMPLES = 3
"""A restart shows in so many samples at most."""
BEFORE, AFTER = 20, 6
"""Samples that the level before, and the level after, are made of; an even number, for even and odd steps may differ."""


class Restart(NamedTuple):
    """Samples `first` to `last` (positions) are slow; certain from `detected` on."""

    first: int
    last: int
    detected: int
    before: float
    after: float


def restarts(values: Floats) -> tuple[Restart, ...]:
    """All restarts of a series. No verdict depends on samples after `detected`."""
    known = np.flatnonzero(np.isfinite(values))
    series = values[known]
    calm: deque[float] = deque(maxlen=BEFORE)
    found: list[Restart] = []
    place = 0
    while place < len(series):
        value = series.item(place)
        if len(calm) == BEFORE and value >= SPIKE * min(calm) and value >= (line := SPIKE * median(calm)):
            length = _length(series, place, line)
            following = series[place + length : place + length + AFTER].tolist()
            if length <= MOST_SAMPLES and len(following) == AFTER and (after := _level(following)) <= DROP * (before := _level(calm)):
                last = place + length - 1
                found.append(Restart(int(known[place]), int(known[last]), int(known[last + AFTER]), before, after))
                calm.clear()
            place += length
            continue
        calm.append(value)
        place += 1
    return tuple(found)


def _level(samples: Iterable[float]) -> float:
    """The median over pairs: where even and odd steps differ, the median of a few single ones jumps between the two."""
    samples = iter(samples)
    return median((even + odd) / 2.0 for even, odd in zip(samples, samples, strict=False))


def _length(series: Floats, place: int, line: float) -> int:
    end = place
    while end < len(series) and series[end] >= line:
        end += 1
    return end - place
