"""Seeded series of iteration times, healthy and slow, for bench/detect.py. All of the noise is a model of ours; see NOISE for what each is like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lurcher.detect.residual import WorkloadResidual

Floats = NDArray[np.float64]
Shape = Literal["step", "ramp"]

TUNING = 1_000_003
"""Every constant of every detector was chosen on series of this seed."""
REPORTING = 4_000_037
"""What the tables say comes from series of this seed, on which nothing was chosen. Two are spent: 2,000,029 showed six alarms of the default in
1e7 iterations, five of them under AR(1), and thresholds for few known points were raised; 3,000,017 showed one healthy job of GREYHOUND's
corpus called slow, AR(1) again, and since then the error of the level knows how far the points hang together."""
BURST_GAP = 20
RAMP = 20
"""Iterations in which a ramp reaches its slowdown."""


class Fault(NamedTuple):
    """Iterations `onset` to `onset + duration - 1` are slower by `slowdown`, at once or over RAMP iterations."""

    onset: int
    duration: int
    slowdown: float
    shape: Shape


def gauss1(num: int, rng: np.random.Generator) -> Floats:
    """Normal, 1 %."""
    return 1 + 0.01 * rng.standard_normal(num)


def gauss3(num: int, rng: np.random.Generator) -> Floats:
    """Normal, 3 %."""
    return 1 + 0.03 * rng.standard_normal(num)


def heavy_tail(num: int, rng: np.random.Generator) -> Floats:
    """Student's t with 3 degrees of freedom at 1 %, exponentiated: about one point in 500 is 10 % slow, one in 10,000 is 25 %."""
    return np.exp(0.01 * np.clip(rng.standard_t(3, num), -50, 50))


def autoregressive(num: int, rng: np.random.Generator, phi: float = 0.7, sigma: float = 0.02) -> Floats:
    """AR(1) with phi 0.7 and 2 % scatter of the series itself."""
    shocks = sigma * np.sqrt(1 - phi * phi) * rng.standard_normal(num)
    shocks[0] /= np.sqrt(1 - phi * phi)
    series = np.empty(num)
    last = 0.0
    for i, shock in enumerate(shocks.tolist()):
        last = phi * last + shock
        series[i] = last
    return 1 + series


def spikes(num: int, rng: np.random.Generator) -> Floats:
    """Normal, 1.5 %; every 10th to 200th iteration x1.3 to x3 (optimizer, checkpoint, evaluation), and at random bursts of 1 to 3 at x1.5."""
    series = 1 + 0.015 * rng.standard_normal(num)
    period = int(rng.choice([10, 20, 50, 100, 189, 200]))
    series[int(rng.integers(period)) :: period] *= rng.uniform(1.3, 3.0)
    return _bursts(series, rng)


def drift(num: int, rng: np.random.Generator) -> Floats:
    """Normal, 1 %, on a level that wanders by 2 % from bottom to top in 2,500 iterations, and back."""
    phase = rng.uniform(0, 2 * np.pi)
    return gauss1(num, rng) * (1 + 0.01 * np.sin(phase + np.arange(num) / 5000 * 2 * np.pi))


def _bursts(series: Floats, rng: np.random.Generator) -> Floats:
    """Bursts of 1 to 3 slow iterations, at least 20 apart: nearer ones would be six slow iterations of seven, and that is what a fault is."""
    last = -BURST_GAP
    for first in np.flatnonzero(rng.random(len(series)) < 0.002).tolist():
        if first - last >= BURST_GAP:
            series[first : first + int(rng.integers(1, 4))] *= 1.5
            last = first
    return series


def variable_length(num: int, rng: np.random.Generator) -> Floats:
    """Normal, 1 %, times the work of sequences of variable length (CV of the raw series 15 to 25 %)."""
    return gauss1(num, rng)


def everything(num: int, rng: np.random.Generator) -> Floats:
    """All of it: AR(1) 0.5 at 1 %, heavy tails at 0.5 %, 2 % drift, spikes and bursts, variable length."""
    series = autoregressive(num, rng, 0.5, 0.01) * np.exp(0.005 * np.clip(rng.standard_t(3, num), -50, 50))
    period = int(rng.choice([20, 50, 100, 189, 200]))
    series[int(rng.integers(period)) :: period] *= rng.uniform(1.3, 3.0)
    phase = rng.uniform(0, 2 * np.pi)
    return _bursts(series, rng) * (1 + 0.01 * np.sin(phase + np.arange(num) / 5000 * 2 * np.pi))


NOISE: Mapping[str, Callable[[int, np.random.Generator], Floats]] = {
    "gauss 1 %": gauss1,
    "gauss 3 %": gauss3,
    "heavy tail": heavy_tail,
    "AR(1) 0.7": autoregressive,
    "spikes": spikes,
    "drift": drift,
    "variable length": variable_length,
    "all": everything,
}
WITH_WORK = ("variable length", "all")


def generator(seed: int, noise: str, number: int) -> np.random.Generator:
    """The random numbers of one trace: independent of every other trace and of the order in which they are made."""
    return np.random.default_rng([seed, list(NOISE).index(noise), number])


def slowdown_of(fault: Fault, num: int) -> Floats:
    """Factor of each of `num` iterations."""
    since = np.arange(num) - fault.onset
    inside = (since >= 0) & (since < fault.duration)
    reached = np.clip((since + 1) / RAMP, 0, 1) if fault.shape == "ramp" else np.ones(num)
    return np.where(inside, 1 + (fault.slowdown - 1) * reached, 1.0)


def work_of(num: int, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Tokens, sums of squared lengths and healthy seconds of `num` iterations of 16 packs of documents; the seconds have a CV of 15 to 25 %."""
    tokens = rng.normal(32_000, 2_000, num).clip(20_000)
    mean_length = 1_000 * np.exp(rng.uniform(0.45, 0.7) * rng.standard_normal(num)).clip(0.2, 5)
    squares = tokens * mean_length
    share = 0.3  # of the attention's quadratic part in a typical iteration
    seconds = 0.2 + 0.8 * ((1 - share) * tokens / 32_000 + share * squares / 32_000_000)
    return tokens, squares, seconds


def residuals(noise: str, series: Floats, rng: np.random.Generator) -> Floats:
    """What a detector is given: the series itself, or observed / expected where the work varies and is known.

    The fit is never told that something is suspect, which is the harder case: it learns some of the slowness.
    """
    if noise not in WITH_WORK:
        return series
    tokens, squares, seconds = work_of(len(series), rng)
    fit = WorkloadResidual()
    rows = zip((series * seconds).tolist(), tokens.tolist(), squares.tolist(), strict=True)
    return np.array([fit.update(*row) for row in rows])


def healthy(seed: int, noise: str, number: int, num: int) -> Floats:
    """A healthy trace of `num` iterations."""
    rng = generator(seed, noise, number)
    return residuals(noise, NOISE[noise](num, rng), rng)
