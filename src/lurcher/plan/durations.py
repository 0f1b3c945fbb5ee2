"""When to act, with what is known of how long such faults last: thresholds of the ladder moved inside a promise.

Break-even knows nothing of the future and pays at most twice the best in hindsight. Faults that mostly last long should be
answered earlier, short ones later. For two options a threshold of x times the cost has the worst case
max(1 + x, 1 + 1 / x), so every x in [1 / (rho - 1), rho - 1] keeps a factor of rho >= 2, whatever the estimate is worth:
Purohit, Svitkina, Kumar (NeurIPS 2018, section 2.2, with lambda = 1 / (rho - 1)), and the clamp of a threshold fitted to a
distribution is the policy of Kim, Fan (arXiv 2603.29233). Their bound is for two options. With more levels the interval alone
promises nothing, so the exact worst case of all thresholds together (`ladder.worst_case`) is held too, to rho or to that of
break-even, whichever is more. (Multi-option ski rental, arXiv 2312.02547, is another problem: its options cover a period of
their own, while ours lower the rent for as long as it is paid.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import NormalDist
from types import MappingProxyType

import msgspec
import numpy as np

from lurcher.errors import UserError
from lurcher.plan.ladder import Floats, Level, worst_case, worst_cases
from lurcher.records import Cause

PRIOR_MEAN_S: Mapping[Cause, float] = MappingProxyType({"compute": 600.0, "communication": 1440.0})
"""GREYHOUND's mean durations: 10 min for slow compute on one node, 24 min for slow links on four."""
OTHER_MEAN_S = 600.0
"""The mean assumed for any other cause."""
PRIOR_EPISODES = 4.0
"""How many ended episodes the prior is worth."""
PRIOR_POINTS = 24
PRIOR_SIGMA = 1.5
"""The prior is log-normal: most faults are short, and a few make up the mean."""
REMEMBERED = 100
"""Ended episodes kept: what a cluster's faults are like changes."""
MAX_CANDIDATES = 4096


class Durations(msgspec.Struct, frozen=True):
    """How long faults of one cause last, in seconds: the mean to begin with, and the episodes that ended since."""

    mean_s: float
    ended_s: tuple[float, ...] = ()

    @classmethod
    def of(cls, cause: Cause) -> Durations:
        """What is known of a cause before anything was seen."""
        return cls(PRIOR_MEAN_S.get(cause, OTHER_MEAN_S))

    def after(self, duration_s: float) -> Durations:
        """One ended episode more. Raises UserError for a duration that is none."""
        if not 0 < duration_s < float("inf"):
            raise UserError(f"an episode of {duration_s} s cannot be learned from; a duration is above 0 and finite")
        return Durations(self.mean_s, (*self.ended_s, duration_s)[-REMEMBERED:])

    def weighted(self) -> tuple[Floats, Floats]:
        """Durations and their weights, summing to 1: the prior's points and the ended episodes."""
        middles = (np.arange(PRIOR_POINTS) + 0.5) / PRIOR_POINTS
        shape = np.exp(PRIOR_SIGMA * np.array([NormalDist().inv_cdf(float(p)) for p in middles]))
        prior_s = shape * (self.mean_s / shape.mean())
        weights = np.concatenate([np.full(PRIOR_POINTS, PRIOR_EPISODES / PRIOR_POINTS), np.ones(len(self.ended_s))])
        return np.concatenate([prior_s, np.array(self.ended_s)]), weights / weights.sum()

    def remaining_s(self, elapsed_s: float) -> float:
        """Mean seconds still to come of an episode that has lasted `elapsed_s`; beyond all that was seen, as long again."""
        durations_s, weights = self.weighted()
        longer = durations_s > elapsed_s
        if not longer.any():
            return elapsed_s
        return float(np.average(durations_s[longer] - elapsed_s, weights=weights[longer]))


def learned_levels(levels: Sequence[Level], rates: Sequence[float], durations: Durations, rho: float) -> tuple[Level, ...]:
    """The levels with the thresholds of least mean cost over `durations`, whose worst case stays at max(rho, that of break-even).

    `rates[k]` is what is lost per second of the fault with k levels in force, in seconds, `rates[0]` without any; as planned,
    never rising. rho = 2 is GREYHOUND's Algorithm 1 for two options. Searched on a geometric grid of up to nine thresholds a
    level; among equals the nearest to break-even. Raises UserError for rho below 2, which no rule can promise.
    """
    if not rho >= 2:
        raise UserError(f"rho is {rho}; no rule is sure to stay below twice the best in hindsight: give 2 or more")
    if len(rates) != len(levels) + 1 or any(not rate >= 0 for rate in rates):
        raise UserError(f"{len(levels)} levels need {len(levels) + 1} loss rates of 0 or more, not {tuple(rates)}")
    if not levels or rho == 2 or rates[0] == 0:
        return tuple(level._replace(threshold_s=None) for level in levels)
    costs_s = np.array([level.cost_s for level in levels])
    factors = _factors(len(levels), rho)
    thresholds_s = np.maximum.accumulate(factors * costs_s, axis=1)
    allowed = max(rho, worst_case([level._replace(threshold_s=None) for level in levels])) * (1 + 1e-9)
    kept = np.flatnonzero(worst_cases(costs_s, thresholds_s) <= allowed)
    durations_s, weights = durations.weighted()
    mean_s = episode_costs_s(costs_s, thresholds_s[kept], rates, durations_s) @ weights
    away = np.abs(np.log(factors[kept])).sum(axis=1)
    best = np.lexsort((away, np.round(mean_s, 9)))[0]
    return _with(levels, thresholds_s[kept[best]])


def episode_costs_s(costs_s: Floats, thresholds_s: Floats, rates: Sequence[float], durations_s: Floats) -> Floats:
    """What the ladder pays over whole episodes, loss and purchases, in seconds: shape (candidates, episodes).

    `costs_s` (levels,); `thresholds_s` (candidates, levels), never falling; the loss runs at `rates[k]` a second with k levels in force.
    """
    total = np.zeros((len(thresholds_s), len(durations_s)))
    begin_s = np.zeros(len(thresholds_s))
    reached_s = np.zeros(len(thresholds_s))
    for k, rate in enumerate(rates):
        if k < len(costs_s):
            missing_s = thresholds_s[:, k] - reached_s
            with np.errstate(over="ignore"):  # next to no loss reaches a threshold next to never
                lasts_s = missing_s / rate if rate > 0 else np.where(missing_s > 0, np.inf, 0.0)
            reached_s = thresholds_s[:, k]
        else:
            lasts_s = np.full(len(thresholds_s), np.inf)
        total += rate * np.clip(durations_s - begin_s[:, None], 0.0, lasts_s[:, None])
        begin_s = begin_s + lasts_s
        if k < len(costs_s):
            total += costs_s[k] * (durations_s > begin_s[:, None])
    return total


def _factors(num_levels: int, rho: float) -> Floats:
    """Candidates (count, levels): every combination of a few factors of the cost in [1 / (rho - 1), rho - 1], 1 among them."""
    points = next(n for n in (9, 7, 5, 3) if n == 3 or n**num_levels <= MAX_CANDIDATES)
    grid = np.exp(np.linspace(-np.log(rho - 1), np.log(rho - 1), points))
    return np.array(list(product(grid, repeat=num_levels)))


def _with(levels: Sequence[Level], thresholds_s: Floats) -> tuple[Level, ...]:
    return tuple(level._replace(threshold_s=float(at_s)) for level, at_s in zip(levels, thresholds_s, strict=True))
