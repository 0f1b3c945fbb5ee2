"""Rows of several ranks, spread out as iterations x ranks, one column at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lurcher.analyze.period import LARGEST, Floats, Ints, as_floats
from lurcher.ingest.log import Log

PARTS = ("input_s", "host_s", "transfer_s")
"""Parts of an iteration that may take no time at all; 0 is a value of theirs, and unknown in all other columns."""
TRANSFERS = ("transfer_tp_s", "transfer_dp_s", "transfer_pp_s", "transfer_world_s")
CELLS = 1 << 22
"""Values that are worked on at once: 32 MiB of them, whatever the number of ranks and iterations."""


@dataclass(frozen=True, eq=False)
class RankTable:
    """What is known of several ranks. A column is iterations x ranks, NaN where a rank has no row, and is made when it is asked for.

    iterations: the input's own numbers, rising. ranks: global ranks, rising. names: the columns that there are. stride: iterations from one
    row to the next.
    """

    iterations: Ints
    ranks: Ints
    names: frozenset[str]
    column: Callable[[str], Floats]
    stride: int = 1


def rank_table(log: Log) -> RankTable:
    """The ranks of a log. `transfer_s` is the sum over the kinds of groups."""
    rows = log.rows
    place: tuple[NDArray[np.intp], NDArray[np.intp]] | None = None
    if len(rows) % log.num_ranks == 0 and _is_full(rows, log.num_ranks):
        iterations, ranks = rows["index"][:: log.num_ranks], rows["rank"][: log.num_ranks]
    else:
        iterations, row = np.unique(rows["index"], return_inverse=True)
        ranks, in_row = np.unique(rows["rank"], return_inverse=True)
        place = (row, in_row)

    def column(name: str) -> Floats:
        values = _part(rows, TRANSFERS if name == "transfer_s" else (name,)) if name in PARTS else as_floats(rows[name])
        if place is None:
            return values.reshape(len(iterations), len(ranks))
        spread = np.full((len(iterations), len(ranks)), np.nan)
        spread[place] = values
        return spread

    return RankTable(iterations.astype(np.int64), ranks.astype(np.int64), log.columns, column, log.stride)


def _is_full(rows: NDArray[np.void], num_ranks: int) -> bool:
    """Whether rows, which are sorted by iteration and rank, are the table already: every rank in every iteration."""
    ranks, index = rows["rank"].reshape(-1, num_ranks), rows["index"].reshape(-1, num_ranks)
    return bool((ranks == ranks[:1]).all() and (index == index[:, :1]).all())


def _part(rows: NDArray[np.void], names: Sequence[str]) -> Floats:
    """The sum of columns, over those that are known; NaN where none is."""
    total = np.full(len(rows), np.nan)
    for name in names:
        part = np.asarray(rows[name], np.float64)
        known = (part >= 0.0) & (part < LARGEST)
        total = np.where(known, np.where(np.isnan(total), 0.0, total) + part, total)
    return total


def blocks(num_rows: int, num_columns: int) -> Iterator[slice]:
    """Rows in pieces of about CELLS values."""
    step = max(1, CELLS // max(1, num_columns))
    for begin in range(0, num_rows, step):
        yield slice(begin, min(begin + step, num_rows))


def row_medians(values: Floats) -> Floats:
    """The median of each row over what is known in it; NaN where nothing is."""
    found = np.empty(len(values))
    low, high = (values.shape[1] - 1) // 2, values.shape[1] // 2
    for part in blocks(*values.shape):
        ordered, count = _ordered(values[part], low, high)
        every = np.arange(len(count))
        middle = (ordered[every, np.maximum(count - 1, 0) // 2] + ordered[every, np.minimum(count // 2, values.shape[1] - 1)]) / 2.0
        found[part] = np.where(count > 0, middle, np.nan)
    return found


class Middles(NamedTuple):
    """The two values of each row, unknown where fewer than half of the row are known, one of which is the lower median of the others."""

    low: Floats
    high: Floats

    def of_others(self, values: Floats) -> Floats:
        """For each value, iterations x any ranks of these rows, the lower median of the others in its row.

        Of the others, for a value must not be measured by itself; the lower one, so that one of two others cannot hide in their mean.
        """
        # Without a value at or below the middle, the next one is the middle of what is left.
        return np.where(values <= self.low[:, None], self.high[:, None], self.low[:, None])


def middles(values: Floats) -> Middles:
    """What the others of each value are, row by row."""
    if values.shape[1] < 2:
        return Middles(np.full(len(values), np.nan), np.full(len(values), np.nan))
    middle = (values.shape[1] - 2) // 2
    ordered, count = _ordered(values, middle, middle + 1)
    every, place = np.arange(len(values)), np.maximum(count - 2, 0) // 2
    enough = (count >= 2) & (2 * count >= values.shape[1])
    return Middles(*(np.where(enough, ordered[every, place + after], np.nan) for after in (0, 1)))


def _ordered(values: Floats, *middle: int) -> tuple[Floats, NDArray[np.intp]]:
    """Rows in order, unknown values last, and how many are known; where all are, only the places `middle` are in their order."""
    known = np.isfinite(values)
    count = np.count_nonzero(known, axis=1)
    if bool(known.all()):
        return np.partition(values, sorted(set(middle)), axis=1), count
    return np.sort(np.where(known, values, np.inf), axis=1), count
