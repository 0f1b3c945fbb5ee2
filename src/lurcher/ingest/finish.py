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
Floats = npt.NDArray[np.float64]


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
    index, rank, line = series.index, series.rank, series.line
    said = [*series.notes, *notes]
    duration = _usable(columns["duration_s"], series, line, said)
    order, restarts = _order(index, rank, said)
    rows = np.empty(len(order), ITERATION)
    rows[:] = _unknown()
    rows["index"], rows["rank"] = index[order], rank[order]
    for name, values in columns.items():
        target = "transfer_world_s" if name == "transfer_s" else name
        if name == "duration_s":
            rows[target] = duration[order]
        elif target in FLOATS:
            rows[target] = values[order]
        else:
            rows[target] = _counts(values[order])
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


def stride_of(index: npt.NDArray[np.int64], rank: npt.NDArray[np.int32]) -> int:
    """Iterations from one row to the next: the median of one rank's steps, 1 where there are too few rows to tell. Rows lie in order."""
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


def _usable(duration: Floats, series: Series, line: Ints, said: list[str]) -> Floats:
    missing = ~np.isfinite(duration)
    wrong = ~missing & (duration <= 0)
    for bad, word in ((wrong, "zero or negative"), (missing, "missing or not a number")):
        if bad.any():
            said.append(f"{int(bad.sum())} of {len(duration)} durations are {word} (first: line {int(line[bad][0])}): kept as unknown")
    if (missing | wrong).all():
        raise UserError(
            f"{series.path}: none of {len(duration)} iterations has a duration above zero (first: line {int(line[0]) if len(line) else 1}); "
            "an iteration needs a positive time: check the column or the unit"
        )
    return np.where(wrong | missing, np.nan, duration)


def _order(index: Ints, rank: Ints, said: list[str]) -> tuple[Ints, tuple[int, ...]]:
    """Positions of the rows to keep, by (index, rank), and where restarts went back. Of repeats the one that appeared last holds."""
    if len(index) < 2 or (not rank.any() and bool((np.diff(index) > 0).all())):
        return np.arange(len(index)), ()
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
