"""All stages of a layout as arrays, so that what depends on each of them is a few array operations at any size of job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from lurcher.layout import LayerRange, Layout, Stage
from lurcher.model.order import Ints
from lurcher.model.rates import Rates

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class StageTable:
    """The stages in order of (replica, stage), S of them, and their chunks in order of (replica, layers), R of them.

    `ranks` (S, K) repeats a stage's ranks in turn up to the largest stage's number K; `shares` are their fractions of the stage's
    work, 0 where repeated. An empty stage has size 0 and rank 0 throughout. `layers` (R,) counts the model's ends in.
    """

    size: Ints
    ranks: Ints
    shares: Floats
    first_stages: Ints  # per replica, and S at the end
    first_rows: Ints  # per replica, and R at the end
    row_stages: Ints  # the stage that holds each row
    layers: Floats
    ranges: tuple[LayerRange, ...]  # the rows' layers

    @property
    def own(self) -> Bools:
        """Where `ranks` names a rank the first time, (S, K)."""
        return np.arange(self.ranks.shape[1]) < self.size[:, None]

    @property
    def stage_layers(self) -> Floats:
        """Layers per stage over all its chunks, the ends counted in, (S,)."""
        return np.bincount(self.row_stages, self.layers, len(self.size)).astype(np.float64)


def stage_table(layout: Layout, rates: Rates) -> StageTable:
    """The layout's stages as arrays; of `rates` only the ends' layers are read."""
    return table_of([replica.stages for replica in layout.replicas], rates)


def table_of(replicas: Sequence[Sequence[Stage]], rates: Rates) -> StageTable:
    """The stages of these replicas as arrays, whether or not they make a valid layout."""
    stages = list(chain.from_iterable(replicas))
    size = np.fromiter((len(stage.ranks) for stage in stages), np.intp, len(stages))
    flat = np.fromiter(chain.from_iterable(stage.ranks for stage in stages), np.intp)
    weights = np.fromiter(chain.from_iterable(stage.shares for stage in stages), np.float64)
    begin = np.cumsum(size) - size
    turn = np.arange(max(int(size.max()), 1))
    index = np.minimum(begin[:, None] + turn % np.maximum(size, 1)[:, None], max(len(flat) - 1, 0))
    own = turn < size[:, None]
    shares = np.where(own, weights[index], 0.0) if len(flat) else np.zeros(index.shape)
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)
    first_stages = np.cumsum([0, *map(len, replicas)])
    held = [_rows(replica, first) for replica, first in zip(replicas, first_stages.tolist(), strict=False)]
    first_rows = np.cumsum([0, *map(len, held)])
    rows = list(chain.from_iterable(held))
    layers = np.array([chunk.end - chunk.first for chunk, _ in rows], dtype=np.float64)
    layers[first_rows[:-1]] += rates.embed_layers
    layers[first_rows[1:] - 1] += rates.head_layers
    ranks = np.where(size[:, None] > 0, flat[index] if len(flat) else 0, 0)
    row_stages = np.array([stage for _, stage in rows], dtype=np.intp)
    return StageTable(size, ranks, shares, first_stages, first_rows, row_stages, layers, tuple(chunk for chunk, _ in rows))


def parts_of(table: StageTable, sizes: Sequence[int]) -> Iterator[StageTable]:
    """The table cut up into tables of so many replicas each, in order."""
    replica = 0
    for size in sizes:
        first, end = int(table.first_stages[replica]), int(table.first_stages[replica + size])
        row, last = int(table.first_rows[replica]), int(table.first_rows[replica + size])
        held, replicas = slice(first, end), slice(replica, replica + size + 1)
        yield StageTable(
            table.size[held],
            table.ranks[held],
            table.shares[held],
            table.first_stages[replicas] - first,
            table.first_rows[replicas] - row,
            table.row_stages[row:last] - first,
            table.layers[row:last],
            table.ranges[row:last],
        )
        replica += size


def _rows(replica: Sequence[Stage], first: int) -> list[tuple[LayerRange, int]]:
    """A replica's chunks and the numbers of their stages, in order of the layers, as stages of one chunk each stand already."""
    rows = [(chunk, first + s) for s, stage in enumerate(replica) for chunk in stage.chunks]
    return rows if len(rows) == len(replica) else sorted(rows)


def slowdowns(rates: Rates, ranks: Ints) -> Floats:
    """The slowdown of each rank, infinity for a dead one; same shape as `ranks`."""
    by_rank = np.ones(max(int(ranks.max(initial=0)), *rates.slowdown, *rates.dead, 0) + 1)
    by_rank[list(rates.slowdown)] = list(rates.slowdown.values())
    by_rank[list(rates.dead)] = np.inf
    return by_rank[ranks]


def efficiencies(rates: Rates, sizes: Ints) -> Floats:
    """`Rates.efficiency` of each tensor-parallel degree; a degree of 0 counts as 1."""
    factors = np.array(rates.tp_efficiency)
    return factors[np.clip(sizes, 1, len(factors)) - 1]
