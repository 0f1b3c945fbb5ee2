"""Order and layers of many pipelines at once, by a search of single steps: a layer moved, or two cells exchanged."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lurcher.plan.shop import Shop

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]
EVEN = 1e-3
"""Weight of evenness beside the time, so that the search does not stop on a plateau of two equally long stages."""
BETTER = 1 - 1e-9
"""A step must lower what a pipeline costs to less than this part of it: by more than rounding."""
MOST_STEPS = 60
CHUNK = 60_000
"""Array elements looked at together: what a core's cache holds."""
FEW_COUNTS = 4
"""Below so many micro-batches per stage the closed form may be off, and the walk goes on from where it ended."""


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
    layers = _balanced(shop, layer_s[cells], shop.room(largest[cells], counts))
    fits = np.flatnonzero(layers.sum(axis=1) == shop.num_layers)
    found = Rows(cells.copy(), np.zeros_like(layers))
    if not len(fits):
        return found
    search = _Search(shop, layer_s[cells[fits]].T, largest[cells[fits]].T, counts[fits])
    even = _Places.start(layers[fits].T)
    places = even.copy()
    search.climb(places, np.arange(len(fits)), MOST_STEPS, walk=False)
    few = np.flatnonzero(counts[fits] < FEW_COUNTS * shop.num_stages)
    if len(few) and shop.num_stages > 1:
        better = few[search.cost(even, few, walk=True) < search.cost(places, few, walk=True)]
        places.put(better, even.chosen(better))
        search.climb(places, few, MOST_STEPS, walk=True)
    found.cells[fits] = np.take_along_axis(cells[fits], places.turn.T, axis=1)
    found.layers[fits] = places.layers.T
    return found


class _Places(NamedTuple):
    """Which of its cells each pipeline has at each stage, and the layers there, both (P, R)."""

    turn: Ints
    layers: Ints

    @classmethod
    def start(cls, layers: Ints) -> _Places:
        """The cells in the order given."""
        return cls(np.repeat(np.arange(len(layers))[:, None], layers.shape[1], axis=1), layers.copy())

    def copy(self) -> _Places:
        """One that can be changed."""
        return _Places(self.turn.copy(), self.layers.copy())

    def chosen(self, which: Ints) -> _Places:
        """Those of some pipelines."""
        return _Places(self.turn[:, which], self.layers[:, which])

    def put(self, which: Ints, places: _Places) -> None:
        """Change those of some pipelines, in place."""
        self.turn[:, which], self.layers[:, which] = places.turn, places.layers


class _Search:
    """Steps of R pipelines side by side. Arrays have a stage a row and pipelines along memory; `layer_s`, `largest` are (P, R), of the cells as given."""

    def __init__(self, shop: Shop, layer_s: Floats, largest: Floats, counts: Ints) -> None:
        self._shop, self._layer_s, self._largest, self._counts = shop, layer_s, largest, counts
        num_stages, num_rows = layer_s.shape
        moves, swaps = list(permutations(range(num_stages), 2)), list(combinations(range(num_stages), 2))
        self._here, self._there = np.array([*moves, *swaps], dtype=np.intp).reshape(-1, 2).T  # the two stages of each step
        self._moved = (np.arange(len(self._here)) < len(moves)).astype(np.intp)[:, None]  # layers that go from here to there
        self._to_here = np.where(self._moved[:, 0], self._here, self._there)  # where the cell comes from that is then here
        self._to_there = np.where(self._moved[:, 0], self._there, self._here)
        every = np.repeat(largest.T.reshape(-1, 1), num_stages, axis=1)  # each cell at each stage
        self._room = shop.room(every, np.repeat(counts, num_stages)).reshape(num_rows, num_stages, num_stages).T  # (stage, cell, row)

    @property
    def num_steps(self) -> int:
        """Steps that each pipeline can take."""
        return max(1, len(self._here))

    def climb(self, places: _Places, which: Ints, most: int, *, walk: bool) -> None:
        """Up to `most` steps of each of `which`, in place, the best one each time, until none is better."""
        if not len(self._here):
            return
        block = max(1, CHUNK // (self.num_steps * self._shop.num_stages))
        for first in range(0, len(which), block):
            rows = which[first : first + block]
            now = self.cost(places, rows, walk=walk)
            for _ in range(most):
                best, found = self._best(places.chosen(rows), rows, now, walk)
                better = found < now * BETTER
                rows, now = rows[better], found[better]
                if not len(rows):
                    break
                places.put(rows, self._after(places.chosen(rows), best[better]))

    def cost(self, places: _Places, which: Ints, *, walk: bool) -> Floats:
        """What `which` cost now, (R,)."""
        here = places.chosen(which)
        times, work, counts = self._times(here, which), self._work(here, which), self._counts[which]
        seconds = self._shop.walked_s(times, counts) if walk else self._shop.closed_s(times, counts)
        found: Floats = seconds + self._shop.gradient_s * work.max(axis=0) + _uneven(times, counts)
        return found

    def _best(self, here: _Places, which: Ints, now: Floats, walk: bool) -> tuple[Ints, Floats]:
        """The best step of each of `which` and what it leads to; the latter is infinite where, by a bound, no step can be good."""
        shop, counts = self._shop, self._counts[which]
        held = here.layers[self._to_here] - self._moved, here.layers[self._to_there] + self._moved
        cells = here.turn[self._to_here], here.turn[self._to_there]
        columns = np.arange(len(which))
        times, work = (np.repeat(array[:, None, :], len(self._here), axis=1) for array in (self._times(here, which), self._work(here, which)))
        valid = held[0] >= 1
        every = np.arange(len(self._here))
        for stage, layers, cell in zip((self._here, self._there), held, cells, strict=True):
            valid &= layers <= self._room[stage[:, None], cell, which]
            counted = layers + shop.ends[stage][:, None]
            times[stage, every] = 2 * shop.rates.launch_s + counted * self._layer_s[cell, which]
            work[stage, every] = counted * self._largest[cell, which]
        after_s, uneven_s = shop.gradient_s * work.max(axis=0), _uneven(times, counts)
        if walk:
            cost = np.full(valid.shape, np.inf)
            valid &= shop.floor_s(times, counts) + after_s + uneven_s < now
            cost[valid] = shop.walked_s(times[:, valid], np.broadcast_to(counts, valid.shape)[valid]) + after_s[valid] + uneven_s[valid]
        else:
            cost = np.where(valid, shop.closed_s(times, counts) + after_s + uneven_s, np.inf)
        best = np.argmin(cost, axis=0)
        return best, cost[best, columns]

    def _after(self, places: _Places, steps: Ints) -> _Places:
        """Each of the pipelines after one step."""
        after, columns = places.copy(), np.arange(len(steps))
        for stage, source, change in ((self._here, self._to_here, -1), (self._there, self._to_there, 1)):
            after.turn[stage[steps], columns] = places.turn[source[steps], columns]
            after.layers[stage[steps], columns] = places.layers[source[steps], columns] + change * self._moved[steps, 0]
        return after

    def _times(self, here: _Places, which: Ints) -> Floats:
        layer_s = np.take_along_axis(self._layer_s[:, which], here.turn, axis=0)
        return 2 * self._shop.rates.launch_s + (here.layers + self._shop.ends[:, None]) * layer_s

    def _work(self, here: _Places, which: Ints) -> Floats:
        return (here.layers + self._shop.ends[:, None]) * np.take_along_axis(self._largest[:, which], here.turn, axis=0)


def _uneven(times: Floats, counts: Ints) -> Floats:
    """What unevenness of the stages' times (P, ..., R) counts for."""
    found: Floats = EVEN * (times * times).sum(axis=0) / times.sum(axis=0) * counts
    return found


def _balanced(shop: Shop, layer_s: Floats, room: Floats) -> Ints:
    """One layer each, then each next one to where it ends earliest. (R, P); stops early where memory is full."""
    layers = np.ones(layer_s.shape, dtype=np.intp)
    rows, ends = np.arange(len(layers)), shop.ends
    next_s = np.where(layers < room, 2 * shop.rates.launch_s + (layers + 1 + ends) * layer_s, np.inf)
    for _ in range(shop.num_layers - shop.num_stages):
        at = np.argmin(next_s, axis=1)
        held = layers[rows, at] + np.isfinite(next_s[rows, at])
        layers[rows, at] = held
        next_s[rows, at] = np.where(held < room[rows, at], 2 * shop.rates.launch_s + (held + 1 + ends[at]) * layer_s[rows, at], np.inf)
    layers[(room < 1).any(axis=1)] = 0
    return layers
