"""GREYHOUND's Tables 3 and 4 redone: whole jobs, right or wrong, on a corpus with the mix of its Table 1.

Table 1: of 392 single-node jobs 4 had CPU contention and 2 a down-clocked GPU; of 107 four-node jobs 1 had CPU contention and
42 a slow network. The paper's own denominators in Tables 3 and 4 do not fit those counts, so the measure is ours: a healthy
job is right if nothing is confirmed slower in it; a slow one if the fault is confirmed while it lasts and nothing before it.
Noise, sizes and lengths are models of ours within what the paper states (extremes, means).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from detect_run import Make
from detect_series import NOISE, Fault, Floats, generator, residuals, slowdown_of

JOB = 1_500
"""Iterations of a job; the paper's have 10,000."""
Kind = Literal["compute", "communication"]


class Mix(NamedTuple):
    """How many jobs of a kind there are, how many are slow, and the range of their slowdowns (drawn evenly in the logarithm)."""

    kind: Kind
    num_jobs: int
    num_slow: int
    least: float
    most: float


MIXES = (
    # A thermal GPU costs 20 %, CPU contention at most 21.6 %.
    Mix("compute", 392, 6, 1.10, 1.276),
    # Throughput falls by up to 80 %; the one miss of the paper had slowdowns below 10 %.
    Mix("communication", 107, 43, 1.05, 5.0),
)


class Score(NamedTuple):
    """Jobs by what they were and what was said."""

    num_healthy: int
    num_slow: int
    false_positives: int
    missed: int

    @property
    def accuracy(self) -> float:
        """Share of jobs that were judged right."""
        return 1 - (self.false_positives + self.missed) / max(1, self.num_healthy + self.num_slow)

    @property
    def fpr(self) -> float:
        """Healthy jobs called slow, over healthy jobs."""
        return self.false_positives / max(1, self.num_healthy)

    @property
    def fnr(self) -> float:
        """Slow jobs not found, over slow jobs."""
        return self.missed / max(1, self.num_slow)


def job(mix: Mix, seed: int, copy: int, number: int) -> tuple[Floats, Fault | None]:
    """The residuals of one job of the corpus, and its fault if it has one. Every noise class has the same share of the jobs."""
    noise = list(NOISE)[number % len(NOISE)]
    rng = generator(seed + (17 if mix.kind == "compute" else 34), noise, 100_000 * (copy + 1) + number)
    series = NOISE[noise](JOB, rng)
    fault = None
    if number < mix.num_slow:
        duration = int(np.clip(rng.exponential(200), 40, 600))
        slowdown = float(np.exp(rng.uniform(np.log(mix.least), np.log(mix.most))))
        fault = Fault(int(rng.integers(300, JOB - duration)), duration, slowdown, "step" if rng.random() < 0.7 else "ramp")
        series = series * slowdown_of(fault, JOB)
    return residuals(noise, series, rng), fault


def judge(make: Make, mix: Mix, seed: int, copies: int) -> Iterator[Score]:
    """A running score over `copies` corpora, after each job."""
    score = Score(0, 0, 0, 0)
    for copy in range(copies):
        for number in range(mix.num_jobs):
            series, fault = job(mix, seed, copy, number)
            first = _first_alarm(make, series)
            if fault is None:
                score = score._replace(num_healthy=score.num_healthy + 1, false_positives=score.false_positives + (first is not None))
            else:
                found = first is not None and fault.onset <= first < fault.onset + fault.duration
                score = score._replace(num_slow=score.num_slow + 1, missed=score.missed + (not found))
            yield score


def _first_alarm(make: Make, series: Floats) -> int | None:
    detector = make()
    for iteration, value in enumerate(series.tolist()):
        change = detector.update(value, iteration)
        if change is not None and change.tier == "confirmed" and change.direction == "slower":
            return iteration
    return None
