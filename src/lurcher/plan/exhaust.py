"""Small jobs: every way to deal cells out to replicas, every order and cut of each replica, every split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from math import comb, factorial

import numpy as np
from numpy.typing import NDArray

from lurcher.model.traffic import hop_s
from lurcher.plan.arrange import Arrangement, Ground
from lurcher.plan.cuts import cut
from lurcher.plan.split import min_max_split

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
MOST_CELLS = 8
"""Of so many cells all partitions are looked at: 105 of eight in pairs."""
MOST_LANES = 6_000
"""Orders and cuts of a replica that are all walked; beyond, `cuts.cut` searches."""


@dataclass(frozen=True, eq=False)
class Best:
    """Of one replica: the least time with m micro-batches, (cap + 1,), and the order and layers that reach it, (cap + 1, P)."""

    seconds: Floats
    cells: Ints
    layers: Ints


def every_arrangement(ground: Ground, *, cap: int) -> Iterator[Arrangement]:
    """The best order, cuts and split for every partition of the cells, each replica with as many stages as now.

    `cap` is the most micro-batches that a replica is tried with. Cells that are left over stand by. Nothing where there are
    too many or too few cells.
    """
    num_replicas, num_stages = ground.cells.grid.shape
    num_cells = len(ground.cells.stages)
    if num_cells > MOST_CELLS or num_cells < num_replicas * num_stages or num_stages > ground.layout.num_layers:
        return
    known: dict[tuple[int, ...], Best] = {}
    for parts in partitions(tuple(range(num_cells)), num_replicas, num_stages):
        for part in parts:
            if part not in known:
                known[part] = best_of(ground, part, cap)
        chosen = [known[part] for part in parts]
        if sum(len(best.seconds) - 1 for best in chosen) < ground.layout.num_microbatches:
            continue
        split = min_max_split([best.seconds for best in chosen], ground.layout.num_microbatches, 0)
        counted = [(best, max(m, 1)) for best, m in zip(chosen, split, strict=True)]
        longest = max(float(best.seconds[m]) for best, m in zip(chosen, split, strict=True))
        yield Arrangement(np.stack([best.cells[m] for best, m in counted]), np.stack([best.layers[m] for best, m in counted]), split, longest)


def partitions(cells: Sequence[int], num_parts: int, size: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All ways to choose `num_parts` disjoint sets of `size` cells; sets in order of their first cells."""
    if num_parts == 0:
        yield ()
        return
    for i, first in enumerate(cells[: len(cells) - num_parts * size + 1]):
        for others in combinations(cells[i + 1 :], size - 1):
            rest = [c for c in cells[i + 1 :] if c not in others]
            for more in partitions(rest, num_parts - 1, size):
                yield ((first, *others), *more)


def best_of(ground: Ground, part: tuple[int, ...], cap: int) -> Best:
    """A replica's best order and cut for every number of micro-batches; no entry beyond 0 where memory has no room."""
    shop = ground.shop(len(part))
    cells, layers = _lanes(ground, part, cap)
    fits = (layers <= shop.room(ground.cells.largest[cells], np.full(len(cells), cap))).all(axis=1) & (layers.sum(axis=1) == shop.num_layers)
    cells, layers = cells[fits], layers[fits]
    if not len(cells):
        none = np.zeros((1, len(part)), dtype=np.intp)
        return Best(np.zeros(1), none, none)
    times = shop.times(ground.cells.layer_s[cells], layers)
    hops = hop_s(ground.net, ground.cells.table, cells[:, :-1].ravel(), cells[:, 1:].ravel()).reshape(len(cells), len(part) - 1)
    tables = shop.tables(times, hops, cap)
    best = np.argmin(np.round(tables + shop.after_s(layers, ground.cells.largest[cells])[:, None], 12), axis=0)
    return Best(np.maximum.accumulate(tables[best, np.arange(cap + 1)]), cells[best], layers[best])


def _lanes(ground: Ground, part: tuple[int, ...], cap: int) -> tuple[Ints, Ints]:
    """Orders and cuts to walk, (lanes, P) each: all, or those that a search finds for every number of micro-batches."""
    num_layers, num_stages = ground.layout.num_layers, len(part)
    if comb(num_layers - 1, num_stages - 1) * factorial(num_stages) > MOST_LANES:
        counts = np.arange(1, cap + 1)
        found = cut(ground.shop(num_stages), np.tile(np.array(part, dtype=np.intp), (cap, 1)), ground.cells.layer_s, ground.cells.largest, counts)
        return found.cells, found.layers
    ends = np.array([(0, *cuts, num_layers) for cuts in combinations(range(1, num_layers), num_stages - 1)], dtype=np.intp)
    sizes = np.diff(ends, axis=1)
    orders = np.array(list(permutations(part)), dtype=np.intp)
    return np.repeat(orders, len(sizes), axis=0), np.tile(sizes, (len(orders), 1))
