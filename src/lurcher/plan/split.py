"""How many micro-batches each replica should run: exact min-max over any monotone cost table.

GREYHOUND S2 solves min max_i m_i t_i with a solver. The cost here is a table T_i(m) per replica, from the walk of the
critical path; the greedy is exact for it, needs no solver, and is thousands of times faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lurcher.errors import UserError

Floats = NDArray[np.float64]


def min_max_split(times: Sequence[Floats], num_microbatches: int, min_each: int = 1, present: Sequence[int] | None = None) -> tuple[int, ...]:
    """The split (m_0, ..) with sum `num_microbatches` and m_i >= `min_each` that minimises max_i times[i][m_i].

    `times[i]` holds T_i(0) .. T_i(cap_i) in seconds and never falls; its length caps m_i. Among the optimal splits the
    one nearest to `present` (default: the even split) is returned, then the one whose moved micro-batches end earliest,
    then the one that favours earlier replicas. Raises UserError when no split fits.
    """
    _check(times, num_microbatches, min_each)
    target = np.array(present if present is not None else _even(num_microbatches, len(times)))
    table = _joined(times)
    best_s = _least_makespan(table, num_microbatches, min_each)
    most = table.per_replica(table.ends_s <= best_s) - 1
    split = np.minimum(np.maximum(target, min_each), most)
    missing = num_microbatches - int(split.sum())
    counts = table.counts
    if missing > 0:
        more = (counts > split[table.replica]) & (counts <= most[table.replica])
        split += table.per_replica(_smallest(table.ends_s, more, missing))
    elif missing < 0:  # raising some to `min_each` gave too many: take them back where they end latest, of equals the later replica's
        fewer = (counts > min_each) & (counts <= split[table.replica])
        split -= table.per_replica(_smallest(-table.ends_s[::-1], fewer[::-1], -missing)[::-1])
    return tuple(split.tolist())


class _Joined(NamedTuple):
    """All tables end to end: an entry's seconds, its number of micro-batches and its replica; and where each replica's begin."""

    ends_s: Floats
    counts: NDArray[np.intp]
    replica: NDArray[np.intp]
    begins: NDArray[np.intp]

    def per_replica(self, chosen: NDArray[np.bool_]) -> NDArray[np.intp]:
        """How many entries of each replica are chosen."""
        return np.asarray(np.add.reduceat(chosen, self.begins, dtype=np.intp))


def _joined(times: Sequence[Floats]) -> _Joined:
    sizes = np.fromiter(map(len, times), np.intp, len(times))
    begins = np.cumsum(sizes) - sizes
    replica = np.repeat(np.arange(len(times)), sizes)
    return _Joined(np.concatenate(times), np.arange(len(replica)) - begins[replica], replica, begins)


def _least_makespan(table: _Joined, num_microbatches: int, min_each: int) -> float:
    """The optimum of the min-max. The greedy gives each next micro-batch to where it ends earliest; as no table falls, those it
    hands out are the smallest entries of all tables together, so the last one is found without handing out."""
    base_s = float(table.ends_s[table.begins + min_each].max())
    rest = num_microbatches - min_each * len(table.begins)
    if rest == 0:
        return base_s
    ends = table.ends_s[table.counts > min_each]
    return max(base_s, float(np.partition(ends, rest - 1)[rest - 1]))


def _smallest(values: Floats, among: NDArray[np.bool_], count: int) -> NDArray[np.bool_]:
    """The `count` smallest values among some, of equals the earlier: what a greedy takes one by one where no table falls."""
    last = np.partition(values[among], count - 1)[count - 1]
    chosen: NDArray[np.bool_] = among & (values < last)
    chosen[np.flatnonzero(among & (values == last))[: count - int(chosen.sum())]] = True
    return chosen


def proportional_costs(unit_s: float, cap: int, fill: int = 0) -> Floats:
    """The papers' cost table: (m + fill) * unit_s for m = 1 .. cap and 0 for none; fill is 0 (GREYHOUND S2) or P - 1 (pipeline).

    `unit_s` is the slowest stage's time per micro-batch. Proposes only: with one slow stage it is up to 48 % too high.
    """
    counts = np.arange(cap + 1)
    return np.where(counts > 0, (counts + fill) * unit_s, 0.0)


def _even(num_microbatches: int, num_replicas: int) -> list[int]:
    base, more = divmod(num_microbatches, num_replicas)
    return [base + (i < more) for i in range(num_replicas)]


def _check(times: Sequence[Floats], num_microbatches: int, min_each: int) -> None:
    if not times:
        raise UserError("a split needs at least one replica")
    caps = [len(table) - 1 for table in times]
    if min_each * len(times) > num_microbatches:
        raise UserError(
            f"{num_microbatches} micro-batches cannot give each of {len(times)} replicas {min_each}: raise num_microbatches or let replicas idle"
        )
    if sum(caps) < num_microbatches or min(caps) < min_each:
        raise UserError(f"{num_microbatches} micro-batches do not fit the replicas' caps {tuple(caps)}: raise the caps or lower num_microbatches")
    joined = np.concatenate(times)
    falls = joined[1:] < joined[:-1] * (1 - 1e-9)  # no subtraction: a dead replica's entries may be infinite
    falls[np.cumsum([len(table) for table in times])[:-1] - 1] = False  # where the next table begins
    if falls.any() or np.isnan(joined).any():
        raise ValueError("a replica's cost table falls or has a NaN; more micro-batches never take less time")
