"""Rows of several ranks, spread out as iterations x ranks, and a cheap look at which ranks deserve the detector."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lurcher.analyze.period import Floats, Ints, as_floats
from lurcher.ingest.log import Log

SCREEN_RISE = 1.05
"""A rank is looked at closely if its ratio stays above this times its own lower quartile,"""
SCREEN_WINDOW, SCREEN_HITS = 7, 5
"""in so many of so many samples in a row, at least once. The detector confirms 10 % from six of seven, so that this loses none."""
CHUNK = 512
"""Ranks at a time, for memory."""


class RankTable(NamedTuple):
    """One column as iterations x ranks; NaN where a rank has no row."""

    iterations: Ints
    ranks: Ints
    values: Floats


def table(log: Log, column: str) -> RankTable:
    """A column of the log, spread out; `transfer_s` is the sum over the kinds of groups."""
    rows = log.rows
    values = _column(log, column)
    num_ranks = log.num_ranks
    if len(rows) % num_ranks == 0 and (rows["rank"].reshape(-1, num_ranks) == rows["rank"][:num_ranks]).all():
        # Rows are sorted by iteration and rank: without gaps they are the table.
        index = rows["index"].reshape(-1, num_ranks)
        if (index == index[:, :1]).all():
            return RankTable(index[:, 0].astype(np.int64), rows["rank"][:num_ranks].astype(np.int64), values.reshape(-1, num_ranks))
    iterations, row = np.unique(rows["index"], return_inverse=True)
    ranks, place = np.unique(rows["rank"], return_inverse=True)
    spread = np.full((len(iterations), len(ranks)), np.nan)
    spread[row, place] = values
    return RankTable(iterations.astype(np.int64), ranks.astype(np.int64), spread)


def _column(log: Log, column: str) -> Floats:
    if column != "transfer_s":
        return as_floats(log.rows[column])
    parts = np.array([as_floats(log.rows[name]) for name in ("transfer_tp_s", "transfer_dp_s", "transfer_pp_s", "transfer_world_s")])
    return np.where(np.isfinite(parts).any(axis=0), np.nansum(parts, axis=0), np.nan)


def against_the_others(values: Floats) -> Floats:
    """Each value over the median of all ranks at the same iteration; NaN where fewer than half of the ranks have one."""
    known = np.isfinite(values)
    enough = known.sum(axis=1) * 2 >= values.shape[1]
    ratios = np.full(values.shape, np.nan)
    if enough.any():
        ratios[enough] = values[enough] / np.nanmedian(values[enough], axis=1, keepdims=True)
    return ratios


def worth_a_look(ratios: Floats) -> NDArray[np.int64]:
    """Places of the ranks whose ratio stays high for a while; the only ones that need the detector."""
    found = []
    for begin in range(0, ratios.shape[1], CHUNK):
        part = ratios[:, begin : begin + CHUNK]
        seen = np.isfinite(part).any(axis=0)
        own = np.full(part.shape[1], np.inf)
        own[seen] = np.nanpercentile(part[:, seen], 25, axis=0)
        # Counted over the samples that a rank has: a gap is no healthy sample.
        for place in np.flatnonzero(seen) if np.isnan(part).any() else ():
            mine = part[np.isfinite(part[:, place]), place] > SCREEN_RISE * own[place]
            if _longest(mine[:, None]).any():
                found.append(begin + int(place))
        if not np.isnan(part).any():
            found += (begin + np.flatnonzero(_longest(part > SCREEN_RISE * own))).tolist()
    return np.array(found, np.int64)


def _longest(high: NDArray[np.bool_]) -> NDArray[np.bool_]:
    counts = np.zeros((len(high) + 1, high.shape[1]), np.int32)
    np.cumsum(high, axis=0, out=counts[1:])
    if len(high) < SCREEN_WINDOW:
        return np.zeros(high.shape[1], bool)
    return np.asarray((counts[SCREEN_WINDOW:] - counts[:-SCREEN_WINDOW] >= SCREEN_HITS).any(axis=0))
