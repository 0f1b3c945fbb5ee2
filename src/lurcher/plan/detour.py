"""Slow links that nobody uses cost nothing: cells of one kind change places until no two neighbours share a slow link."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from lurcher.model.rates import Rates
from lurcher.model.traffic import network
from lurcher.plan.cells import Cells

Ints = NDArray[np.intp]
At = tuple[int, int]
MOST_TRIES = 64
"""Exchanges looked at for one clash."""


def detour(cells: Cells, rates: Rates, placed: Ints) -> tuple[Ints, Ints]:
    """`placed` (D, P) with places exchanged so that no two neighbours share a slow link, and the former number of each replica (D,).

    Neighbours are the stages before and after (activations) and the like stages of the replicas before and after (the
    gradients' ring). A cell changes places with another of the same speed, size and shares; where that does not help, its whole
    replica with another. Links of one node to all others cannot be avoided, and are left alone. A job too small to keep off
    stays as it is.
    """
    pairs = [(link.a, link.b) for link in rates.links if link.b >= 0 and link.slowdown > 1.0 and link.kind == "node"]
    pairs += [(rates.node(link.a), rates.node(link.b)) for link in rates.links if link.b >= 0 and link.slowdown > 1.0 and link.kind == "rank"]
    slow = {frozenset(pair) for pair in pairs if len(set(pair)) == 2}
    nodes = network(rates).node(cells.table.ranks[:, 0])
    board = _Board(cells, nodes.tolist(), placed.copy(), slow)
    touched = np.isin(nodes, [node for pair in slow for node in pair])
    for move in (board.free, board.free_replica) if slow else ():
        for d, s in np.argwhere(touched[board.placed] & (board.placed >= 0)).tolist():
            if board.clashes((d, s)):
                move((d, s))
    return board.placed, board.former


class _Board:
    """The grid while cells change places on it."""

    def __init__(self, cells: Cells, nodes: Sequence[int], placed: Ints, slow: set[frozenset[int]]) -> None:
        self.placed = placed
        self.former = np.arange(len(placed))
        self._cells, self._nodes, self._slow = cells, nodes, slow

    def clashes(self, place: At) -> bool:
        """Whether a slow link joins this place and a neighbour."""
        own = self._nodes[int(self.placed[place])]
        return any(frozenset((own, self._nodes[int(self.placed[at])])) in self._slow for at in self._neighbours(place))

    def free(self, place: At) -> None:
        """Exchange this cell with the first of its kind that ends the clash and makes none."""
        kind = self._kind(place)
        tries = 0
        for other in self._others(place):
            if self._kind(other) != kind:
                continue
            self._exchange(place, other)
            if not self.clashes(place) and not self.clashes(other):
                return
            self._exchange(place, other)
            tries += 1
            if tries == MOST_TRIES:
                return

    def free_replica(self, place: At) -> None:
        """Exchange this replica with the first that ends the clash and makes none."""
        d, num_replicas = place[0], len(self.placed)
        for step in range(2, min(num_replicas - 1, MOST_TRIES)):
            e = (d + step) % num_replicas
            self._exchange_replicas(d, e)
            if not self._any_clash(d) and not self._any_clash(e):
                return
            self._exchange_replicas(d, e)

    def _kind(self, place: At) -> tuple[float, tuple[int, ...]]:
        cell = int(self.placed[place])
        return round(float(self._cells.layer_s[cell]), 12), self._cells.stages[cell].shares

    def _any_clash(self, d: int) -> bool:
        return any(self.clashes((d, s)) for s in range(self.placed.shape[1]) if self.placed[d, s] >= 0)

    def _exchange_replicas(self, d: int, e: int) -> None:
        for array in (self.placed, self.former):
            array[[d, e]] = array[[e, d]]

    def _exchange(self, here: At, there: At) -> None:
        self.placed[here], self.placed[there] = self.placed[there], self.placed[here]

    def _others(self, place: At) -> Iterator[At]:
        """Places to try: the same stage of replicas further on, then the other stages of the own one, then all others."""
        d, s = place
        num_replicas, num_stages = self.placed.shape
        for step in range(2, num_replicas + 1):
            if self.placed[(d + step) % num_replicas, s] >= 0:
                yield (d + step) % num_replicas, s
        for t in range(num_stages):
            if t != s and self.placed[d, t] >= 0:
                yield d, t
        for step in range(1, num_replicas):
            for t in range(num_stages):
                if t != s and self.placed[(d + step) % num_replicas, t] >= 0:
                    yield (d + step) % num_replicas, t

    def _neighbours(self, place: At) -> Iterator[At]:
        d, s = place
        num_replicas = len(self.placed)
        for t in (s - 1, s + 1):
            if 0 <= t < self.placed.shape[1] and self.placed[d, t] >= 0:
                yield d, t
        for e in ((d - 1) % num_replicas, (d + 1) % num_replicas):
            for t in (s - 1, s, s + 1) if e != d else ():  # replicas may be cut differently: the next stages may hold the same layers
                if 0 <= t < self.placed.shape[1] and self.placed[e, t] >= 0:
                    yield e, t
