"""Who holds what, before and after a change of layout, as arrays: the model's layers cut into runs that no chunk's border cuts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lurcher.layout import Layout
from lurcher.model.order import Ints
from lurcher.model.rates import Rates
from lurcher.model.stage_table import Bools, Floats, StageTable, stage_table


@dataclass(frozen=True, eq=False)
class Part:
    """Of every stage's ranks, the part of each layer's atoms that they hold, (S, K): contiguous, in order of the ranks."""

    table: StageTable
    low: Floats
    high: Floats
    runs: Bools  # (S, U): which runs of layers the stage holds


@dataclass(frozen=True, eq=False)
class Holdings:
    """Both layouts over the same U runs of layers; run u is layers `cuts[u]` .. `cuts[u + 1] - 1`."""

    cuts: Ints
    before: Part
    after: Part
    stage_of: Ints  # (D, U): the stage of `before` that holds a run in a replica
    place: Ints  # per rank, stage * K + index in `before`; -1 for a rank that held nothing

    def part_of(self, ranks: Ints, runs: Ints) -> tuple[Floats, Floats]:
        """What each rank held of the layers of each run before: from low to high, and from 1 to 1 for nothing."""
        width = self.before.table.ranks.shape[1]
        place = np.where(ranks < len(self.place), self.place[np.minimum(ranks, len(self.place) - 1)], -1)
        stage, index = np.divmod(np.maximum(place, 0), width)
        has = (place >= 0) & self.before.runs[stage, runs]
        return np.where(has, self.before.low[stage, index], 1.0), np.where(has, self.before.high[stage, index], 1.0)


def holdings(before: Layout, after: Layout, rates: Rates) -> Holdings:
    """Both layouts as arrays."""
    old, new = stage_table(before, rates), stage_table(after, rates)
    cuts = np.array(sorted({border for table in (old, new) for chunk in table.ranges for border in (chunk.first, chunk.end)}))
    held, wanted = _part(old, cuts), _part(new, cuts)
    stage, run = np.nonzero(held.runs)
    stage_of = np.zeros((len(before.replicas), len(cuts) - 1), dtype=np.intp)
    stage_of[np.searchsorted(old.first_stages, stage, side="right") - 1, run] = stage
    place = np.full(int(old.ranks.max()) + 1, -1, dtype=np.intp)
    place[old.ranks[old.own]] = np.flatnonzero(old.own.ravel())
    return Holdings(cuts, held, wanted, stage_of, place)


def run_layers(cuts: Ints, rates: Rates) -> Floats:
    """Layers of each run, the model's ends counted in."""
    layers = np.diff(cuts).astype(np.float64)
    layers[0] += rates.embed_layers
    layers[-1] += rates.head_layers
    return layers


def _part(table: StageTable, cuts: Ints) -> Part:
    high = np.cumsum(table.shares, axis=1)
    firsts = np.array([chunk.first for chunk in table.ranges])
    ends = np.array([chunk.end for chunk in table.ranges])
    row, run = np.nonzero((cuts[:-1] >= firsts[:, None]) & (cuts[:-1] < ends[:, None]))
    runs = np.zeros((len(table.size), len(cuts) - 1), dtype=np.bool_)
    runs[table.row_stages[row], run] = True
    return Part(table, high - table.shares, high, runs)
