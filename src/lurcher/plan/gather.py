"""Which cell stands in which replica: slow ones dealt out over the replicas or gathered in few, at little movement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from lurcher.plan.cells import Cells

Ints = NDArray[np.intp]
ALIKE = 0.01
"""Cells within this of the median count as healthy: they are not moved for their speed."""


def grids(cells: Cells, together_first: bool) -> Iterator[Ints]:
    """Arrangements (D, P) of cells to look at, -1 where a replica has a stage less.

    Holes that dead cells leave are filled with spare cells; then they stay, or one replica after the other is given up to fill
    them. Slow cells stay where they are, or stand 1, 2, 4 .. P to a replica, like to like: spread out, they slow many
    replicas a little, which a split in whole micro-batches cannot answer; together, they slow few a lot, which it can.
    """
    start = _with_spares(cells)
    starts = [start]
    if (start < 0).any():
        starts.append(_given_up(cells, start))
    for grid in starts:
        slow = slow_cells(cells, grid)
        live = int((grid >= 0).any(axis=1).sum())
        sizes = [size for size in _doubling(grid.shape[1]) if 0 < len(slow) <= size * live]
        for size in reversed([0, *sizes]) if together_first else [0, *sizes]:
            yield gathered(grid, slow, size) if size else grid


def by_stage(grid: Ints, nodes: Ints) -> Ints:
    """GREYHOUND's role swap (S3a): cells dealt out in order of their nodes, all replicas' first stages first.

    Then gradients stay inside nodes as far as they can, and links between nodes carry activations. `nodes` (C,) per cell.
    """
    used = grid >= 0
    order = sorted(grid[used].tolist(), key=lambda c: (int(nodes[c]), c))
    found = np.full(grid.shape, -1, dtype=np.intp)
    found.T[used.T] = order
    return found


def _doubling(most: int) -> list[int]:
    """1, 2, 4 .. and `most` itself."""
    return sorted({min(2**i, most) for i in range(most.bit_length() + 1)})


def slow_cells(cells: Cells, grid: Ints) -> list[int]:
    """The cells of the grid that are slower than the median, slowest first."""
    used = grid[grid >= 0]
    layer_s = cells.layer_s[used]
    slow = used[layer_s > np.median(layer_s) * (1 + ALIKE)]
    return [int(c) for c in slow[np.lexsort((slow, -cells.layer_s[slow]))]]


def gathered(grid: Ints, slow: Sequence[int], size: int) -> Ints:
    """The grid with `slow`, in order, in blocks of `size` that stand in one replica each: the one that holds most of the block, if free.

    Cells change places; none but the slow ones, and those that make room, move.
    """
    grid = grid.copy()
    spots = np.isin(grid, slow)
    place = {int(grid[d, s]): (d, s) for d, s in np.argwhere(spots).tolist()}
    blocks = [list(slow[i : i + size]) for i in range(0, len(slow), size)]
    roomy = (grid >= 0).sum(axis=1) >= size
    free = dict.fromkeys(np.flatnonzero(roomy).tolist())
    spotted = set(slow)
    clean = iter(np.flatnonzero(roomy & ~spots.any(axis=1)).tolist())
    homes: dict[int, int] = {}
    for number, block in enumerate(blocks):
        own = [place[c][0] for c in block if place[c][0] in free]
        home = max(own, key=lambda d: (own.count(d), -d)) if own else next((d for d in clean if d in free), next(iter(free), -1))
        if home < 0:
            continue
        del free[home]
        homes[number] = home
    for number, home in homes.items():
        block = blocks[number]
        for c in block:
            d, s = place[c]
            if d == home:
                continue
            t = _room_in(grid[home], block, spotted, s)
            other = int(grid[home, t])
            grid[home, t], grid[d, s] = c, other
            place[c], place[other] = (home, t), (d, s)
    return grid


def _room_in(row: Ints, block: Sequence[int], spotted: set[int], near: int) -> int:
    """The stage of a replica to make room at: of a slow cell that belongs elsewhere, else the same stage, else the first."""
    usable = [t for t, c in enumerate(row.tolist()) if c >= 0 and c not in block]
    return min(usable, key=lambda t: (int(row[t]) not in spotted, t != near, t))


def _with_spares(cells: Cells) -> Ints:
    """The present grid with holes filled by spare cells, fastest first, and slow cells replaced by faster spare ones."""
    grid = cells.grid.copy()
    spare = sorted(set(range(len(cells.stages))) - set(grid[grid >= 0].tolist()), key=lambda c: (cells.layer_s[c], c))
    for d, s in np.argwhere(grid < 0):
        if spare:
            grid[d, s] = spare.pop(0)
    for c in slow_cells(cells, grid):
        if spare and cells.layer_s[spare[0]] < cells.layer_s[c] / (1 + ALIKE):
            grid[grid == c] = spare.pop(0)
    return grid


def _given_up(cells: Cells, grid: Ints) -> Ints:
    """Replicas given up, those with most holes and the slowest first, until their cells have filled all holes of the others."""
    grid = grid.copy()
    while True:
        holes = (grid < 0).sum(axis=1)
        broken = np.flatnonzero((holes > 0) & (holes < grid.shape[1]))
        if not len(broken):
            return grid
        times = np.where(grid >= 0, cells.layer_s[grid], 0.0).sum(axis=1)
        d = int(broken[np.lexsort((broken, -times[broken], -holes[broken]))[0]])
        pool = sorted((int(c) for c in grid[d] if c >= 0), key=lambda c: (cells.layer_s[c], c))
        grid[d] = -1
        live = (grid >= 0).any(axis=1, keepdims=True)
        for e, s in np.argwhere((grid < 0) & live):
            if pool:
                grid[e, s] = pool.pop(0)
