"""Long series made short enough to draw: each bucket's least, middle and largest value, so that no spike is lost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lurcher.report.load import median_of

MOST_POINTS = 3000
"""Up to this many iterations each is drawn as it is."""
NUM_BUCKETS = 1500


@dataclass(frozen=True)
class Buckets:
    """`size` iterations each (1: the series itself); `index` is the middle one's number. NaN where nothing is known."""

    size: int
    index: np.ndarray
    low: np.ndarray
    middle: np.ndarray
    high: np.ndarray


def buckets(index: np.ndarray, values: np.ndarray, num_buckets: int = NUM_BUCKETS, most_points: int = MOST_POINTS) -> Buckets:
    """A series in at most `num_buckets` buckets, or as it is where it has at most `most_points`."""
    if len(index) <= most_points:
        return Buckets(1, index, values, values, values)
    size = -(-len(index) // num_buckets)
    whole = len(index) // size * size
    parts = [_Part(index[:whole], values[:whole]).of(size)]
    if whole < len(index):
        parts.append(_Part(index[whole:], values[whole:]).of(len(index) - whole))
    return Buckets(size, *(np.concatenate(columns) for columns in zip(*parts, strict=True)))


@dataclass(frozen=True)
class _Part:
    index: np.ndarray
    values: np.ndarray

    def of(self, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        table = self.values.reshape(-1, size)
        low = np.where(np.isfinite(table), table, np.inf).min(axis=1)
        high = np.where(np.isfinite(table), table, -np.inf).max(axis=1)
        known = np.isfinite(low)
        return self.index.reshape(-1, size)[:, size // 2], np.where(known, low, np.nan), median_of(table), np.where(known, high, np.nan)
