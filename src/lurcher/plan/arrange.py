"""A grid of cells made into a whole plan of work: order and layers of every replica, and its micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
Bools = NDArray[np.bool_]
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


def arrange(ground: Ground, grids: Sequence[Ints]) -> list[Arrangement | None]:
    """The best order, layers and split for each grid, as far as `cuts.cut` leads; None where memory or counts leave no way.

    Replicas of like cells are cut alike, once, over all grids. Then cells of one kind change places to keep off slow links.
    """
    layout, cells = ground.layout, ground.cells
    counts = [_entitled(layout, cells, grid) for grid in grids]
    placed, layers, cut = _cut(ground, np.concatenate(grids), np.concatenate(counts))
    found: list[_Dealt | None] = []
    for g, (grid, each) in enumerate(zip(grids, counts, strict=True)):
        rows = slice(g * len(grid), (g + 1) * len(grid))
        num_live = int((grid >= 0).any(axis=1).sum())
        if not 0 < num_live <= layout.num_microbatches or not cut[rows].all():
            found.append(None)
            continue
        kept_off, former = detour(cells, ground.rates, placed[rows])
        found.append(_Dealt(kept_off, layers[rows][former], each[former]))
    tables = iter(_tables(ground, [dealt for dealt in found if dealt]))
    return [dealt and _split(layout, dealt, next(tables)) for dealt in found]


class _Dealt(NamedTuple):
    """An arrangement without its split: cells and layers (D, P), and the micro-batches (D,) that speed entitles each replica to."""

    cells: Ints
    layers: Ints
    counts: Ints


def _cut(ground: Ground, grid: Ints, counts: Ints) -> tuple[Ints, Ints, Bools]:
    """Cells in order and their layers, (R, P) each, for replicas of any grids; and which of them have a cut, (R,), those without cells too."""
    cells, depth = ground.cells, (grid >= 0).sum(axis=1)
    placed, layers, cut_up = np.full(grid.shape, -1, dtype=np.intp), np.zeros(grid.shape, dtype=np.intp), depth == 0
    for num_stages in sorted(set(depth[depth > 0].tolist())):
        if num_stages > ground.layout.num_layers:
            continue
        rows = np.flatnonzero(depth == num_stages)
        held = grid[rows][grid[rows] >= 0].reshape(len(rows), num_stages)
        kinds = np.concatenate([cells.layer_s[held], cells.largest[held], counts[rows, None]], axis=1)
        _, first, which = np.unique(np.round(kinds, 12), axis=0, return_index=True, return_inverse=True)
        found = cut(ground.shop(num_stages), held[first], cells.layer_s, cells.largest, counts[rows[first]])
        turn = np.argmax(found.cells[:, :, None] == held[first][:, None, :], axis=2)
        placed[rows, :num_stages] = np.take_along_axis(held, turn[which.ravel()], axis=1)
        layers[rows, :num_stages] = found.layers[which.ravel()]
        cut_up[rows] = layers[rows].any(axis=1)
    return placed, layers, cut_up


def _split(layout: Layout, dealt: _Dealt, tables: Sequence[Floats]) -> Arrangement | None:
    """With the best split; None where memory has not room for all micro-batches."""
    if sum(len(table) - 1 for table in tables) < layout.num_microbatches:
        return None
    near = layout.split if len(layout.split) == len(tables) else None
    found = min_max_split(tables, layout.num_microbatches, 0, near)
    split = np.zeros(len(dealt.cells), dtype=np.intp)
    split[(dealt.cells >= 0).any(axis=1)] = found
    longest = max(float(table[m]) for table, m in zip(tables, found, strict=True))
    return Arrangement(dealt.cells, dealt.layers, tuple(split.tolist()), longest)


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


def _tables(ground: Ground, dealt: Sequence[_Dealt]) -> list[list[Floats]]:
    """T(m) of every replica that has stages, for each of `dealt`; equal replicas share one table."""
    if not dealt:
        return []
    cells, layers = np.concatenate([each.cells for each in dealt]), np.concatenate([each.layers for each in dealt])
    depth = (cells >= 0).sum(axis=1)
    found: dict[int, Floats] = {}
    caps = [int(min(ground.layout.num_microbatches, np.ceil(SPARE_COUNTS * each.counts.max()) + 2)) for each in dealt]
    for num_stages in sorted(set(depth[depth > 0].tolist())):
        rows = np.flatnonzero(depth == num_stages)
        shop = ground.shop(num_stages)
        held, sizes = cells[rows, :num_stages], layers[rows, :num_stages]
        times = shop.times(ground.cells.layer_s[held], sizes)
        hops = hop_s(ground.net, ground.cells.table, held[:, :-1].ravel(), held[:, 1:].ravel()).reshape(len(rows), num_stages - 1)
        lines, which = np.unique(np.concatenate([times, hops], axis=1), axis=0, return_inverse=True)
        every = shop.tables(lines[:, :num_stages], lines[:, num_stages:], max(caps))
        for row, line in zip(rows.tolist(), which.ravel().tolist(), strict=True):
            found[row] = every[line]
    size = len(dealt[0].cells)
    return [[found[row][: cap + 1] for row in range(g * size, (g + 1) * size) if row in found] for g, cap in enumerate(caps)]
