"""The segment test in one direction: does some stretch of points that ends now lie above the level, long and far enough to be no accident?

Three rungs, all on the same FOCuS state. A benign burst is short, so what is short must score high; what is long is no burst,
and then only noise is left to fear, corrected for how far the points hang together.
"""

from __future__ import annotations

from math import log1p
from typing import NamedTuple

from lurcher.detect.baseline import Scale
from lurcher.detect.focus import Focus, Segment
from lurcher.detect.memory import Correlation, Memory

DEAD_ZONE = 0.012
"""What counts as nothing in a single point (detection.md, section 5: 2 %, or 1 to 1.5 % where no drift is; the baseline follows drift)."""
MIN_RISE = 0.03
"""A segment's mean must rise so much: real jobs step by 1 to 3 % for reasons of their own (seen in public logs at 0.3 % noise)."""
CLIP = 0.05
CLIP_SIGMAS = 3.0
"""Points count as at most 5 % from the level, or three scatters if that is more (the same section has 6 %): a spike is no better evidence of SIZE
than a point that is slow by SIZE."""


class Rung(NamedTuple):
    """A segment passes if it has so many points, so many of them above the dead zone, and scores more than the threshold."""

    min_length: int
    min_fraction: float
    threshold: float


SHORT = Rung(7, 0.8, 25.0)
"""Immune to bursts and spikes that run into each other (the same section; 18 gave false alarms on periodic work)."""
LONG = Rung(15, 0.7, 10.0)
"""FOCuS above the dead zone: noise scores 10 by chance once in e^10 tries, and the dead zone makes it far rarer."""
KNOWN = Rung(12, 0.6, 15.0)
"""Scored by the log-likelihood ratio of a rise of SIZE over none: noise reaches 15 once in e^15 tries."""
SIZE = 0.05
"""The smallest fault that is searched for by its size: for a known change no test is quicker (Page's CUSUM; Moustakides 1986)."""
WATCH = Rung(3, 0.5, 3.0)
"""While such a segment is open nothing is learned; every segment that alarms is one."""
RAISED = 1.5
"""What LONG and KNOWN are multiplied by while few points are known, which is when a wave of the noise comes near them; SHORT is far above it."""
UNSETTLED = 100
SETTLED = 200
"""Points between which that goes to nothing."""


class Side:
    """One direction of a series; points are relative to its level, positive where they lie in that direction."""

    def __init__(self) -> None:
        self._focus = Focus()
        self.watched: Segment | None = None
        """The open segment that keeps the baseline from learning, if any."""

    def feed(self, rel: float, iteration: int, scale: Scale, memory: Memory) -> None:
        """Take one point, `rel` = ratio to the level - 1."""
        sigma = scale.sigma
        clip = max(CLIP_SIGMAS * sigma, CLIP)
        score = self._focus.update((max(-clip, min(clip, rel)) - DEAD_ZONE) / sigma, iteration)
        self.watched = self._open(scale, memory.known) if score > WATCH.threshold else None

    def alarming(self, scale: Scale, memory: Memory) -> Segment | None:
        """The segment that alarms, if one does; its score is corrected for correlation and for how few points are known, its own included."""
        if self.watched is None:
            return None
        known = memory.with_segment(self._focus.inside(self.watched))
        few = min(1.0, max(0.0, (SETTLED - known.num_points) / (SETTLED - UNSETTLED)))
        raised = 1.0 + (RAISED - 1.0) * few
        return self._passes(SHORT, scale, known, 1.0) or self._known(scale, known, raised) or self._passes(LONG, scale, known, raised)

    def _open(self, scale: Scale, known: Correlation) -> Segment | None:
        best = self._best(WATCH, scale, known)
        return best if best.score > WATCH.threshold else None

    def longest(self) -> Segment:
        """The best segment without regard to its score: where a change that is known by other means may have begun."""
        return self._focus.best(SHORT.min_length, SHORT.min_fraction)

    def _passes(self, rung: Rung, scale: Scale, known: Correlation, raised: float) -> Segment | None:
        best = self._best(rung, scale, known)
        score = _studentised(best.score, known.num_points)
        return best._replace(score=score) if score > rung.threshold * raised else None

    def _best(self, rung: Rung, scale: Scale, known: Correlation) -> Segment:
        min_mean = (MIN_RISE - DEAD_ZONE) / scale.sigma
        best = self._focus.best(rung.min_length, rung.min_fraction, min_mean, known.phi, scale.offset(known.phi))
        return best._replace(score=best.score / known.excess)

    def _known(self, scale: Scale, known: Correlation, raised: float) -> Segment | None:
        size, slack, offset = SIZE / scale.sigma, -DEAD_ZONE / scale.sigma, scale.offset(known.phi)

        def likeliest(min_length: int) -> Segment:
            return self._focus.likeliest_rise(size, slack, min_length, KNOWN.min_fraction, known.phi, offset)

        score = _studentised(likeliest(KNOWN.min_length).score / known.excess, known.num_points)
        # Where it began is another question: a segment that has to be long takes in points of before.
        return likeliest(SHORT.min_length)._replace(score=score) if score > KNOWN.threshold * raised else None


def _studentised(score: float, num_points: float) -> float:
    """A log-likelihood ratio where the scatter, too, is only known from so many points: that of Student's t, n/2 log(1 + t^2 / n), score = t^2 / 2."""
    return num_points / 2 * log1p(2 * score / num_points) if num_points > 0.0 else 0.0
