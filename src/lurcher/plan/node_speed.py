"""How fast the stages that a node can host are at best: for the bound, so never too low.

A stage's speed is in layers per second, forward and backward together, of one micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise

import numpy as np
from numpy.typing import NDArray

from lurcher.layout import Layout
from lurcher.model.rates import Rates
from lurcher.model.stage_table import slowdowns
from lurcher.model.traffic import network
from lurcher.plan.group_choice import best_group

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


def living_nodes(layout: Layout, rates: Rates) -> tuple[tuple[float, ...], ...]:
    """Per node with a living rank, working or standing by: the speeds (1 / slowdown) of its living ranks, fastest first.

    Nodes that share a stage now count as one.
    """
    stages = [stage.ranks for _, _, stage in layout.stages() if stage.ranks]
    ranks = np.fromiter(chain(layout.standby, chain.from_iterable(stages)), dtype=np.intp)
    speeds = 1.0 / slowdowns(rates, ranks)
    nodes = network(rates).node(ranks)
    nodes = _joined(nodes, [len(layout.standby), *map(len, stages)])[nodes]
    order = np.lexsort((-speeds, nodes))
    order = order[speeds[order] > 0]
    cuts = [0, *(np.flatnonzero(np.diff(nodes[order])) + 1).tolist(), len(order)]
    sorted_speeds = speeds[order].tolist()
    return tuple(tuple(sorted_speeds[first:end]) for first, end in pairwise(cuts))


def _joined(nodes: Ints, sizes: Sequence[int]) -> Ints:
    """The first of the nodes that each node shares stages with, itself where it shares none; `nodes` of ranks that stand by, then stage by stage."""
    first = np.arange(int(nodes.max()) + 1)
    starts = np.cumsum(sizes)[:-1]
    low, high = np.minimum.reduceat(nodes, starts), np.maximum.reduceat(nodes, starts)
    for i in np.flatnonzero(low != high).tolist():
        members = np.unique(first[np.unique(nodes[starts[i] : starts[i] + sizes[i + 1]])])
        first[np.isin(first, members)] = members[0]
    return first


def node_hulls(nodes: Iterable[tuple[float, ...]], rates: Rates, num_atoms: int, largest: int) -> dict[tuple[float, ...], Floats]:
    """Per kind of node, given by the speeds of its ranks: `node_hull`."""
    kinds = dict.fromkeys(nodes)
    degrees = {most: _degrees([rates.efficiency(k) for k in range(1, min(most, largest) + 1)], most) for most in {len(kind) for kind in kinds}}
    return {kind: node_hull(kind, rates, num_atoms, largest, degrees[len(kind)]) for kind in kinds}


def node_hull(speeds: Sequence[float], rates: Rates, num_atoms: int, largest: int, degrees: Sequence[Sequence[float]]) -> Floats:
    """Speeds that one, two, ... stages on a node's ranks add at most, never rising, shape (ranks,). `speeds` stand fastest first.

    Groups have `largest` ranks or fewer. One stage: exactly the best group of whole atoms. Several: with eff(k) the efficiency of
    k ranks, groups of k_j ranks reach sum eff(k_j) (k_j v - what their ranks are slower than v), v the fastest, at most;
    `degrees` ([n][k]) is the most of the first part, without v. Then the least concave curve above both, so that the steepest steps of all nodes
    together bound any distribution of stages.
    """
    most, fastest = len(speeds), speeds[0]
    lags = list(accumulate(fastest - speed for speed in speeds))
    least = min(rates.efficiency(k) for k in range(1, min(most, largest) + 1))
    layer_s = rates.forward_s + rates.backward_s + rates.weight_s
    totals = [0.0, 1.0 / best_group(speeds, rates, num_atoms, largest).layer_s]
    for num_stages in range(2, most + 1):
        used = range(num_stages, min(most, num_stages * largest) + 1)
        best = max(fastest * degrees[num_stages][k] - least * lags[k - 1] for k in used)
        totals.append(max(totals[-1], best / layer_s))
    return -np.sort(-np.diff(_hull(totals)))


def _degrees(efficiency: Sequence[float], most: int) -> list[list[float]]:
    """[n][k]: the most that k ranks reach in n groups, sum of eff(k_j) k_j; -infinity where they do not fit."""
    found = [[float("-inf")] * (most + 1) for _ in range(most + 1)]
    found[0][0] = 0.0
    for n in range(1, most + 1):
        for k in range(n, most + 1):
            found[n][k] = max(found[n - 1][k - size] + size * efficiency[size - 1] for size in range(1, min(k, len(efficiency)) + 1))
    return found


def _hull(totals: Sequence[float]) -> Floats:
    """The least concave curve above the points (n, totals[n])."""
    kept: list[int] = []
    for n in range(len(totals)):
        while len(kept) >= 2 and (totals[kept[-1]] - totals[kept[-2]]) * (n - kept[-2]) <= (totals[n] - totals[kept[-2]]) * (kept[-1] - kept[-2]):
            kept.pop()
        kept.append(n)
    return np.interp(np.arange(len(totals)), kept, [totals[n] for n in kept])
