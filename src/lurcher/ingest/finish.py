"""From the columns as read to a Log: unusable durations marked, repeats dropped, rows put in order, everything said in notes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from lurcher.errors import UserError
from lurcher.ingest.log import Log
from lurcher.ingest.quantity import FLOATS
from lurcher.ingest.series import Series
from lurcher.records import ITERATION

Ints = npt.NDArray[np.int64]
Ranks = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

STRIDE_ROWS = 1 << 20
"""Rows at the start that tell how many iterations lie between two."""


def to_log(
    series: Series,
    format_name: str,
    columns: Mapping[str, Floats],
    notes: tuple[str, ...] = (),
    *,
    ranks_known: bool = False,
    relative: bool = False,
) -> Log:
    """The Log of a series. `columns`: what the input carried, under the names of records.ITERATION or `transfer_s`; `duration_s` is among them.

    Raises UserError where the input has no usable duration at all.
    """
    index, rank = series.index, series.rank
    said = [*series.notes, *notes]
    unusable = _unusable(columns["duration_s"], series, said)
    order, restarts = _order(index, rank, said)
    rows = np.empty(len(index) if isinstance(order, slice) else len(order), ITERATION)
    rows[:] = _unknown()
    rows["index"], rows["rank"] = index[order], rank[order]
    for name, values in columns.items():
        target = "transfer_world_s" if name == "transfer_s" else name
        rows[target] = values[order] if target in FLOATS else _counts(values[order])
    rows["duration_s"][unusable[order]] = np.nan
    rows.setflags(write=False)
    known = {"transfer_s" if name.startswith("transfer_") else name for name in columns if name != "start_ns"}
    return Log(
        path=series.path,
        format=format_name,
        rows=rows,
        columns=frozenset(known | ({"rank"} if ranks_known else set())),
        stride=stride_of(rows["index"], rows["rank"]),
        num_ranks=len(np.unique(rows["rank"])) if rank.any() else 1,
        notes=tuple(said),
        restarts=restarts,
        relative=relative,
    )


def stride_of(index: Ints, rank: Ranks) -> int:
    """Iterations from one row to the next: the median of one rank's first steps, 1 where there are too few rows to tell. Rows lie in order."""
    index, rank = index[:STRIDE_ROWS], rank[:STRIDE_ROWS]
    steps = np.diff(index[rank == rank[0]]) if len(index) else index
    return max(1, int(np.median(steps))) if len(steps) else 1


def _counts(values: Floats) -> Ints:
    """Whole numbers; 0 for what is unknown, negative or too large for one."""
    with np.errstate(invalid="ignore"):
        return np.where((values >= 0) & (values < 2.0**62), values, 0.0).astype(np.int64)


def _unknown() -> npt.NDArray[np.void]:
    """A row of which nothing is known."""
    row = np.zeros((), ITERATION)
    for name in FLOATS:
        row[name] = np.nan
    return row


def _unusable(duration: Floats, series: Series, said: list[str]) -> npt.NDArray[np.bool_]:
    """Which durations are no positive number."""
    usable = duration > 0
    usable &= duration < np.inf
    unusable = np.logical_not(usable, out=usable)
    if not unusable.any():
        return unusable
    if unusable.all():
        raise UserError(
            f"{series.path}: none of {len(duration)} iterations has a duration above zero (first: {series.where} {series.lines.at(0) if len(series) else 1}); "
            "an iteration needs a positive time: check the column or the unit"
        )
    missing = ~np.isfinite(duration)
    for bad, word in ((unusable & ~missing, "zero or negative"), (missing, "missing or not a number")):
        if bad.any():
            first = series.lines.at(int(bad.argmax()))
            said.append(f"{int(bad.sum())} of {len(duration)} durations are {word} (first: {series.where} {first}): kept as unknown")
    return unusable


def _order(index: Ints, rank: Ranks, said: list[str]) -> tuple[Ints | slice, tuple[int, ...]]:
    """Positions of the rows to keep, by (index, rank), and where restarts went back. Of repeats the one that appeared last holds."""
    if _is_in_order(index, rank):
        return slice(None), ()
    order = np.lexsort((rank, index))  # stable: of equal pairs the one that appeared last stays last
    last = np.ones(len(order), bool)
    last[:-1] = (np.diff(index[order]) != 0) | (np.diff(rank[order]) != 0)
    kept = order[last]
    repeated = np.zeros(len(index), bool)  # by position: this pair has appeared before
    later = order[1:][~last[:-1]]
    repeated[later] = True
    by_rank = np.argsort(rank, kind="stable")
    back = np.zeros(len(index), bool)
    back[by_rank[1:]] = (np.diff(index[by_rank]) < 0) & (np.diff(rank[by_rank]) == 0)
    restarts = tuple(sorted({int(i) for i in index[back & repeated]}))
    num_repeated = len(index) - len(kept)
    if num_repeated:
        first = int(index[repeated][0])
        how = f" as a restart does ({len(restarts)} times, first at iteration {restarts[0]})" if restarts else ""
        said.append(f"{num_repeated} rows repeat an earlier iteration{how}, first iteration {first}: the later ones count")
    if (back & ~repeated).any():
        said.append(
            f"{int((back & ~repeated).sum())} rows stand before a lower iteration than the one read last: all were put in the order of their iterations"
        )
    return kept, restarts


def _is_in_order(index: Ints, rank: Ranks) -> bool:
    """Whether every (index, rank) is above the one before it. Without a copy: most files are, and some are large."""
    if bool((index[1:] > index[:-1]).all()):
        return True
    return bool(((index[1:] > index[:-1]) | ((index[1:] == index[:-1]) & (rank[1:] > rank[:-1]))).all())
