"""A grid of cells made into a whole plan of work: order and layers of every replica, and its micro-batches."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lurcher.layout import LayerRange, Layout, Replica, Stage
from lurcher.model.rates import Rates
from lurcher.model.traffic import Network, hop_s
from lurcher.plan.cells import Cells
from lurcher.plan.cuts import cut
from lurcher.plan.detour import detour
from lurcher.plan.shop import Shop
from lurcher.plan.split import min_max_split

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
SPARE_COUNTS = 1.25
"""Tables reach to so many times the micro-batches that a replica's speed entitles it to."""


@dataclass(frozen=True, eq=False)
class Ground:
    """What all arrangements of a job have in common. `shops` are made once per depth."""

    layout: Layout
    rates: Rates
    schedule: str
    cells: Cells
    net: Network
    shops: dict[int, Shop] = field(default_factory=dict)

    def shop(self, num_stages: int) -> Shop:
        """The shop for pipelines of so many stages; kept, for it keeps compiled schedules."""
        if num_stages not in self.shops:
            self.shops[num_stages] = Shop(self.rates, self.schedule, self.layout.num_layers, num_stages, self._gradient_s())
        return self.shops[num_stages]

    def _gradient_s(self) -> float:
        num_replicas, per_s = len(self.layout.replicas), self.rates.link_bytes_per_s
        return self.rates.sync_bytes_per_layer * 2 * (num_replicas - 1) / num_replicas / per_s if per_s else 0.0


@dataclass(frozen=True, eq=False)
class Arrangement:
    """`cells` and `layers` (D, P), -1 and 0 where a replica has a stage less; `split` (D,); `pipeline_s` of the slowest replica."""

    cells: Ints
    layers: Ints
    split: tuple[int, ...]
    pipeline_s: float


def arrange(ground: Ground, grid: Ints) -> Arrangement | None:
    """The best order, layers and split for a grid, as far as `cuts.cut` leads; None where memory or counts leave no way.

    Replicas of like cells are cut alike, once. Then cells of one kind change places to keep off slow links.
    """
    layout, cells = ground.layout, ground.cells
    depth = (grid >= 0).sum(axis=1)
    live = np.flatnonzero(depth)
    if not len(live) or len(live) > layout.num_microbatches:
        return None
    counts = _entitled(layout, cells, grid)
    placed, layers = np.full(grid.shape, -1, dtype=np.intp), np.zeros(grid.shape, dtype=np.intp)
    for num_stages in sorted(set(depth[live].tolist())):
        if num_stages > layout.num_layers:
            return None
        rows = np.flatnonzero(depth == num_stages)
        held = grid[rows][grid[rows] >= 0].reshape(len(rows), num_stages)
        shop = ground.shop(num_stages)
        kinds = np.concatenate([cells.layer_s[held], cells.largest[held], counts[rows, None]], axis=1)
        _, first, which = np.unique(np.round(kinds, 12), axis=0, return_index=True, return_inverse=True)
        found = cut(shop, held[first], cells.layer_s, cells.largest, counts[rows[first]])
        if (found.layers.sum(axis=1) == 0).any():
            return None
        turn = np.argmax(found.cells[:, :, None] == held[first][:, None, :], axis=2)
        placed[rows, :num_stages] = np.take_along_axis(held, turn[which.ravel()], axis=1)
        layers[rows, :num_stages] = found.layers[which.ravel()]
    placed, former = detour(cells, ground.rates, placed)
    layers, counts, live = layers[former], counts[former], np.flatnonzero((placed >= 0).any(axis=1))
    tables = _tables(ground, placed, layers, counts)
    if sum(len(table) - 1 for table in tables) < layout.num_microbatches:
        return None
    near = layout.split if len(layout.split) == len(live) else None
    found_split = min_max_split(tables, layout.num_microbatches, 0, near)
    split = np.zeros(len(grid), dtype=np.intp)
    split[live] = found_split
    longest = max(float(table[m]) for table, m in zip(tables, found_split, strict=True))
    return Arrangement(placed, layers, tuple(split.tolist()), longest)


def to_layout(layout: Layout, cells: Cells, arrangement: Arrangement) -> Layout:
    """The arrangement as the next generation of `layout`; ranks without a stage stand by. Stages that stay are the same values."""
    replicas = []
    for row, sizes, count in zip(arrangement.cells.tolist(), arrangement.layers.tolist(), arrangement.split, strict=True):
        stages, first = [], 0
        for c, size in zip(row, sizes, strict=True):
            if c >= 0:
                stages.append(Stage(cells.stages[c].ranks, cells.stages[c].shares, (LayerRange(first, first + size),)))
                first += size
        if stages:
            replicas.append(Replica(tuple(stages), count))
    at_work = {rank for replica in replicas for stage in replica.stages for rank in stage.ranks}
    standby = tuple(sorted({*layout.ranks, *layout.standby} - at_work))
    return Layout(layout.num_layers, layout.num_microbatches, tuple(replicas), standby, (), layout.generation + 1)


def _entitled(layout: Layout, cells: Cells, grid: Ints) -> Ints:
    """Micro-batches of each replica if its fill and theirs were shared out by speed, (D,); at least 1."""
    speeds = np.where(grid >= 0, 1.0 / cells.layer_s[grid], 0.0).sum(axis=1)
    fill = np.maximum((grid >= 0).sum(axis=1) - 1, 0)
    counts: Ints = np.maximum(1, np.round((layout.num_microbatches + fill.sum()) * speeds / speeds.sum() - fill)).astype(np.intp)
    return counts


def _tables(ground: Ground, placed: Ints, layers: Ints, counts: Ints) -> list[Floats]:
    """T(m) of every replica that has stages; equal replicas share one table."""
    depth = (placed >= 0).sum(axis=1)
    found: dict[int, Floats] = {}
    cap = int(min(ground.layout.num_microbatches, np.ceil(SPARE_COUNTS * counts.max()) + 2))
    for num_stages in sorted(set(depth[depth > 0].tolist())):
        rows = np.flatnonzero(depth == num_stages)
        shop = ground.shop(num_stages)
        held, sizes = placed[rows, :num_stages], layers[rows, :num_stages]
        times = shop.times(ground.cells.layer_s[held], sizes)
        hops = hop_s(ground.net, ground.cells.table, held[:, :-1].ravel(), held[:, 1:].ravel()).reshape(len(rows), num_stages - 1)
        lines, which = np.unique(np.concatenate([times, hops], axis=1), axis=0, return_inverse=True)
        every = shop.tables(lines[:, :num_stages], lines[:, num_stages:], cap)
        for d, line in zip(rows.tolist(), which.ravel().tolist(), strict=True):
            found[d] = every[line]
    return [found[d] for d in sorted(found)]
