"""Faults drawn from a seed, for trying a job out: what breaks in a long run, in any order and several at once."""

from __future__ import annotations

import random
from collections.abc import Sequence

from lurcher.faults import Fault, Iterations, Where

FIRST_ITERATION = 22
"""Nothing happens before: a detector has to know what healthy is (it arms after about 20 iterations)."""
MEAN_GAP = 18
"""Iterations between two faults' onsets in the mean. The next one often comes while the last one lasts."""
LENGTHS = (12, 40)
FACTORS = (1.4, 3.0)
PERIODS = (4, 10)
KINDS = ("slow", "slow", "slow", "ramp", "flap", "stop", "hang")
"""What a fault may be, the more frequent ones more often."""
MOST_LOST = 2
"""One in so many ranks may stop or hang: the job shall go on."""


def draw_faults(seed: int, ranks: Sequence[int], num_iterations: int) -> tuple[Fault, ...]:
    """Faults of `num_iterations` iterations, in order of their onset; the same for the same arguments.

    Slow ranks, ramps and flaps of factor 1.4 to 3.0 for 12 to 40 iterations; ranks that stop or hang for good, at most every second
    rank and never rank by rank the whole job. A rank that is gone is hit no more.
    """
    rng = random.Random(seed)
    left = sorted(ranks)
    may_lose = len(left) // MOST_LOST
    faults: list[Fault] = []
    onset = FIRST_ITERATION + rng.randrange(MEAN_GAP)
    while onset < num_iterations:
        kind = rng.choice(KINDS)
        rank = rng.choice(left)
        if kind in ("stop", "hang"):
            if may_lose and len(left) > 1:
                faults.append(Fault("stop" if kind == "stop" else "hang", Where("rank", (rank,)), 1.0, Iterations(onset)))
                left.remove(rank)
                may_lose -= 1
        else:
            faults.append(_passing(rng, kind, rank, onset))
        onset += 1 + min(4 * MEAN_GAP, int(rng.expovariate(1.0 / MEAN_GAP)))
    return tuple(faults)


def _passing(rng: random.Random, kind: str, rank: int, onset: int) -> Fault:
    """A slowdown that goes over by itself."""
    factor, length = round(rng.uniform(*FACTORS), 2), rng.randint(*LENGTHS)
    where, begin, lasts = Where("rank", (rank,)), Iterations(onset), Iterations(length)
    if kind == "flap":
        return Fault("flap", where, factor, begin, lasts, period=Iterations(rng.randint(*PERIODS)))
    return Fault("ramp" if kind == "ramp" else "slow", where, factor, begin, lasts)
