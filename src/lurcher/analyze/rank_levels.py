"""What each rank usually is: its level among the others, how far it scatters and how far its samples hang together. All ranks at once.

Learned block by block, from ranks that nothing speaks against. A level that falls is taken at once, one that rises is followed slowly only, or
taken when the test (rank_screen.py) has said that the rank is slow and stays so: what comes then is held against the new level.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lurcher.analyze.beginning import WARMUP
from lurcher.analyze.period import Floats
from lurcher.detect.baseline import SIGMA_FLOOR

MAD_TO_SIGMA = 1.4826
LEAST_SAMPLES = 8
"""Samples that a level is made of at least."""
SETTLED = 300.0
"""Samples after which a level counts as settled (detection.md, section 5), and then it rises by at most"""
FOLLOW = 2e-5
"""a sample, as detect/baseline.py has it for the job."""
MEMORY = 2000.0
SHARED_SAMPLES = 100.0
"""Samples that the median rank's scatter and correlation count for in each rank's own: a few dozen of its own say little."""
MOST_CORRELATION = 0.9
CLIP = 3.0
FALLEN, OWN_FALL = 0.04, 0.5
"""A level that lies lower by more than this, beyond its error, has fallen, if the rank's own time fell by this share of that."""
_MEDIAN_ERROR = 1.25
_WIDEN = 0.7


class Levels:
    """Level, scatter and correlation of each rank; arrays over ranks, NaN for a rank not seen often enough."""

    def __init__(self, level: Floats) -> None:
        """Begin with rough levels: one factor a rank."""
        num_ranks = len(level)
        self.level = level
        self._num = np.zeros(num_ranks)
        self._own = np.full(num_ranks, np.nan)
        self._sigma = np.full(num_ranks, np.nan)
        self._phi = np.zeros(num_ranks)

    def begin(self, own: Floats, usual: Floats) -> None:
        """Learn from the first block: iterations x ranks, each rank's time per unit of work, and what the others let expect of it."""
        judged = (own / usual)[WARMUP:]
        self.level = medians_or_nan(judged, LEAST_SAMPLES)
        self._own = medians_or_nan(own)
        self._scatter(judged / self.level - 1.0, np.isfinite(self.level))

    def learn(self, own: Floats, usual: Floats, calm: NDArray[np.bool_], moved: NDArray[np.bool_]) -> None:
        """Learn from a block, from the `calm` ranks only; take the new level of those that `moved`, and meet ranks that are new.

        own: iterations x ranks, each rank's time per unit of work; usual: what the others let expect of it.
        """
        ratios = own / usual
        z = ratios / self.level - 1.0
        count = np.isfinite(z).sum(axis=0)
        seen = (calm | moved) & (count >= LEAST_SAMPLES)
        self.level = np.where(np.isfinite(self.level), self.level, medians_or_nan(ratios, LEAST_SAMPLES))
        middle = np.where(seen, medians_or_nan(z), 0.0)
        settled = self._num > SETTLED
        step = middle * count / np.maximum(np.minimum(self._num, MEMORY) + count, 1.0)
        step = np.where(settled, np.minimum(step, FOLLOW * count), step)
        latest, self._own = self._own, np.where(seen, medians_or_nan(own), self._own)
        low = seen & (middle < -FALLEN - 3.0 * _MEDIAN_ERROR * self.sigma * np.sqrt(self.inflation / np.maximum(count, 1)))
        # Who stands still while the others become slower has not become faster.
        fallen = low & ~(self._own / latest - 1.0 > OWN_FALL * middle)
        seen = seen & (fallen | ~low)
        jumped = fallen | (moved & seen)
        self.level = np.where(seen, self.level * (1.0 + np.where(jumped, middle, step)), self.level)
        self._scatter((z - np.where(jumped, middle, 0.0)) / (1.0 + np.where(jumped, middle, 0.0)), seen)
        self._num = np.where(jumped, count, self._num)

    def _scatter(self, z: Floats, seen: NDArray[np.bool_]) -> None:
        count = np.where(seen, np.isfinite(z).sum(axis=0), 0)
        share = np.where(seen, count / np.maximum(np.minimum(self._num, MEMORY) + count, 1.0), 0.0)
        sigma = np.where(seen, MAD_TO_SIGMA * medians_or_nan(np.abs(z)), np.nan)
        self._sigma = np.where(np.isfinite(self._sigma), self._sigma + share * (np.nan_to_num(sigma) - self._sigma), sigma)
        with np.errstate(all="ignore"):
            clipped = np.nan_to_num(np.clip(z / sigma, -CLIP, CLIP))
            phi = np.nan_to_num((clipped[1:] * clipped[:-1]).sum(axis=0) / (clipped[:-1] ** 2).sum(axis=0))
        self._phi += share * (phi - self._phi)
        self._num = self._num + count

    @property
    def sigma(self) -> Floats:
        """Relative scatter: a rank's own, or drawn towards the median rank's where that is more, and widened while few samples are known."""
        shared = float(np.nanmedian(self._sigma)) if np.isfinite(self._sigma).any() else SIGMA_FLOOR
        own = np.where(np.isfinite(self._sigma), self._sigma, shared)
        drawn = np.sqrt((self._num * own**2 + SHARED_SAMPLES * shared**2) / (self._num + SHARED_SAMPLES))
        widened: Floats = np.maximum(own, drawn) * (1.0 + _WIDEN / np.sqrt(np.maximum(self._num, 1.0)))
        return np.where(widened > SIGMA_FLOOR, widened, SIGMA_FLOOR)

    @property
    def inflation(self) -> Floats:
        """Variance of a long sum over that of independent samples: (1 + phi) / (1 - phi), phi their lag-1 correlation."""
        shared = max(0.0, float(np.median(self._phi)))
        phi = np.clip((self._num * self._phi + SHARED_SAMPLES * shared) / (self._num + SHARED_SAMPLES), 0.0, MOST_CORRELATION)
        factor: Floats = (1.0 + phi) / (1.0 - phi)
        return factor

    @property
    def error(self) -> Floats:
        """Standard error of each level, relative."""
        return _MEDIAN_ERROR * self.sigma * np.sqrt(self.inflation / np.maximum(np.minimum(self._num, MEMORY), 1.0))


def medians_or_nan(values: Floats, least: int = 1) -> Floats:
    """The median of each column over what is known in it, NaN where that are fewer than `least` samples."""
    known = np.isfinite(values)
    if known.all():
        return np.asarray(np.median(values, axis=0), np.float64)
    enough = np.count_nonzero(known, axis=0) >= least
    found = np.full(values.shape[1], np.nan)
    if enough.any():
        found[enough] = np.nanmedian(np.where(known, values, np.nan)[:, enough], axis=0)
    return found
