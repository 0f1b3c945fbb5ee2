"""Order and layers of many pipelines at once, by a search of single steps: a layer moved, or two cells exchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

from lurcher.plan.shop import Shop

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Seconds = Callable[[Floats, Ints], Floats]
EVEN = 1e-3
"""Weight of evenness beside the time, so that the search does not stop on a plateau of two equally long stages."""
MOST_STEPS = 60
CHUNK = 2_000_000
"""Array elements looked at together."""
FEW_COUNTS = 4
"""Below so many micro-batches per stage the closed form may be off, and the walk goes on from where it ended."""
WALK_STEPS = 6_000_000
"""Actions walked in that, at most; a bound on work, not on time, so that results do not depend on the machine."""


@dataclass(frozen=True, eq=False)
class Rows:
    """R pipelines: the cells of each stage (R, P), in order, and their layers (R, P); 0 throughout where memory has no room."""

    cells: Ints
    layers: Ints


def cut(shop: Shop, cells: Ints, layer_s: Floats, largest: Floats, counts: Ints) -> Rows:
    """Layers for each pipeline and an order of its cells that take least, as far as single steps lead.

    `cells` (R, P) are numbers into `layer_s` and `largest`, `counts` (R,) the micro-batches. Starts with the least longest
    stage; goes by the closed form, then, where micro-batches are few, by the walk, from the better of both.
    """
    search = _Search(shop, layer_s, largest, counts)
    room = shop.room(largest[cells], counts)
    even = Rows(cells.copy(), _balanced(shop, layer_s[cells], room))
    fits = np.flatnonzero(even.layers.sum(axis=1) == shop.num_layers)
    even.layers[even.layers.sum(axis=1) != shop.num_layers] = 0
    found = Rows(even.cells.copy(), even.layers.copy())
    search.climb(found, fits, shop.closed_s, MOST_STEPS)
    few = fits[counts[fits] < FEW_COUNTS * shop.num_stages]
    if len(few) and shop.num_stages > 1:
        better = few[search.cost(even, few, shop.walked_s) < search.cost(found, few, shop.walked_s)]
        found.cells[better], found.layers[better] = even.cells[better], even.layers[better]
        each = len(few) * search.num_steps * 2 * shop.num_stages * int(counts[few].max())
        search.climb(found, few, shop.walked_s, min(MOST_STEPS, WALK_STEPS // each))
    return found


class _Search:
    """Steps of many pipelines side by side."""

    def __init__(self, shop: Shop, layer_s: Floats, largest: Floats, counts: Ints) -> None:
        self._shop, self._layer_s, self._largest, self._counts = shop, layer_s, largest, counts
        stages = range(shop.num_stages)
        self._moves = np.array(list(permutations(stages, 2)), dtype=np.intp).reshape(-1, 2)
        self._swaps = np.array(list(combinations(stages, 2)), dtype=np.intp).reshape(-1, 2)

    @property
    def num_steps(self) -> int:
        """Steps that each pipeline can take."""
        return max(1, len(self._moves) + len(self._swaps))

    def climb(self, rows: Rows, which: Ints, seconds: Seconds, most: int) -> None:
        """Up to `most` steps of each of `which`, in place, the best one each time, until none is better."""
        block = max(1, CHUNK // (self.num_steps * self._shop.num_stages))
        for _ in range(most):
            moved = [self._step(rows, which[i : i + block], seconds) for i in range(0, len(which), block)]
            which = np.concatenate(moved) if moved else which
            if not len(which):
                break

    def cost(self, rows: Rows, which: Ints, seconds: Seconds) -> Floats:
        """What `which` cost now."""
        return self._cost(rows.cells[which], rows.layers[which], self._counts[which], seconds)

    def _cost(self, cells: Ints, layers: Ints, counts: Ints, seconds: Seconds) -> Floats:
        times = self._shop.times(self._layer_s[cells], layers)
        after_s = self._shop.after_s(layers, self._largest[cells]) if self._shop.gradient_s else 0.0
        found: Floats = seconds(times, counts) + after_s + EVEN * (times * times).sum(axis=-1) / times.sum(axis=-1) * counts
        return found

    def _step(self, rows: Rows, which: Ints, seconds: Seconds) -> Ints:
        """Make the best step of each of `which`; returns those that had a good one."""
        if not len(which) or not len(self._moves):
            return which[:0]
        here, held, counts = rows.cells[which], rows.layers[which], self._counts[which]
        cells, layers = self._tried(here, held)
        many = np.repeat(counts[:, None], cells.shape[1], axis=1)
        room = self._shop.room(self._largest[cells.reshape(-1, self._shop.num_stages)], many.ravel()).reshape(cells.shape)
        valid = ((layers >= 1) & (layers <= room)).all(axis=2)
        cost = np.full(valid.shape, np.inf)
        cost[valid] = self._cost(cells[valid], layers[valid], many[valid], seconds)
        best, lane = np.argmin(cost, axis=1), np.arange(len(which))
        better = cost[lane, best] < self._cost(here, held, counts, seconds) * (1 - 1e-9)
        rows.cells[which[better]] = cells[lane, best][better]
        rows.layers[which[better]] = layers[lane, best][better]
        moved: Ints = which[better]
        return moved

    def _tried(self, here: Ints, held: Ints) -> tuple[Ints, Ints]:
        """Cells and layers after each step, both (rows, steps, P)."""
        moves, swaps = np.arange(len(self._moves)), np.arange(len(self._swaps))
        fewer = np.repeat(held[:, None, :], len(moves), axis=1)
        fewer[:, moves, self._moves[:, 0]] -= 1
        fewer[:, moves, self._moves[:, 1]] += 1
        swapped = []
        for array in (here, held):
            other = np.repeat(array[:, None, :], len(swaps), axis=1)
            left, right = other[:, swaps, self._swaps[:, 0]], other[:, swaps, self._swaps[:, 1]]
            other[:, swaps, self._swaps[:, 0]], other[:, swaps, self._swaps[:, 1]] = right, left
            swapped.append(other)
        cells = np.concatenate([np.repeat(here[:, None, :], len(moves), axis=1), swapped[0]], axis=1)
        return cells, np.concatenate([fewer, swapped[1]], axis=1)


def _balanced(shop: Shop, layer_s: Floats, room: Floats) -> Ints:
    """One layer each, then each next one to where it ends earliest. (R, P); stops early where memory is full."""
    layers = np.ones(layer_s.shape, dtype=np.intp)
    rows = np.arange(len(layers))
    for _ in range(shop.num_layers - shop.num_stages):
        ends = np.where(layers < room, shop.times(layer_s, layers + 1), np.inf)
        at = np.argmin(ends, axis=1)
        layers[rows, at] += np.isfinite(ends[rows, at])
    layers[(room < 1).any(axis=1)] = 0
    return layers
