"""Cells: groups of ranks of one node that can each hold a stage. What the joint planner deals out to replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lurcher.layout import LayerRange, Layout, Stage
from lurcher.model.price import stage_pace
from lurcher.model.rates import Rates
from lurcher.model.stage_table import StageTable, table_of
from lurcher.model.traffic import network, tensor_s
from lurcher.plan.group_choice import best_group

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Cells:
    """`stages` hold ranks and shares of each cell, C of them. `grid` (D, P) says which cell holds each stage now, -1 for none left.

    `layer_s` (C,) are the seconds of a layer there and back, `largest` (C,) the largest share of a rank. `table` has a row a
    cell, for traffic between them.
    """

    stages: tuple[Stage, ...]
    grid: Ints
    layer_s: Floats
    largest: Floats
    table: StageTable


def make_cells(layout: Layout, rates: Rates, num_atoms: int) -> Cells:
    """The present stages, those with a slow or dead rank with the best group of what is left of them, and new ones out of standby ranks.

    A group with a slow or dead rank may take ranks that stand by on its node. Whole cells of standby ranks come last.
    """
    dead = frozenset(rates.dead)
    ill = {rank: 1.0 / factor for rank, factor in rates.slowdown.items() if factor != 1.0} | dict.fromkeys(dead, 0.0)
    spare = _by_node([rank for rank in layout.standby if rank not in dead], rates)
    depth = max(len(replica.stages) for replica in layout.replicas)
    grid = np.full((len(layout.replicas), depth), -1, dtype=np.intp)
    found: list[Stage] = []
    for d, s, stage in layout.stages():
        group = stage if ill.keys().isdisjoint(stage.ranks) else _regroup(stage, spare, ill, rates, num_atoms)
        if group.ranks:
            grid[d, s] = len(found)
            found.append(group)
    size = max(stage.tp_size for _, _, stage in layout.stages())
    for ranks in spare.values():
        while len(ranks) >= size:
            found.append(_best(ranks, ill, rates, num_atoms, size))
            for rank in found[-1].ranks:
                ranks.remove(rank)
    table = table_of([(stage,) for stage in found], rates)
    layer_s = (rates.forward_s + rates.backward_s + rates.weight_s) * stage_pace(table, rates) + 2 * tensor_s(network(rates), table)
    return Cells(tuple(found), grid, layer_s, table.shares.max(axis=1), table)


def _by_node(ranks: list[int], rates: Rates) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for rank in ranks:
        found.setdefault(rates.node(rank), []).append(rank)
    return found


def _regroup(stage: Stage, spare: dict[int, list[int]], ill: Mapping[int, float], rates: Rates, num_atoms: int) -> Stage:
    """The best group of a stage's living ranks and those that stand by on its node, no larger than now; without ranks if none lives.

    `ill` are the speeds of the ranks that are not healthy.
    """
    alive = [rank for rank in stage.ranks if ill.get(rank, 1.0)]
    node = rates.node(stage.ranks[0]) if stage.ranks else -1
    waiting = spare.get(node, [])
    chosen = _best([*alive, *waiting], ill, rates, num_atoms, stage.tp_size) if alive or waiting else Stage((), (), ())
    for rank in chosen.ranks:
        if rank in waiting:
            waiting.remove(rank)
    return chosen


def _best(ranks: Sequence[int], ill: Mapping[int, float], rates: Rates, num_atoms: int, most: int) -> Stage:
    """The best group of `ranks`, in their order; of equally fast ones the earlier go on."""
    speeds = [ill.get(rank, 1.0) for rank in ranks]
    order = sorted(range(len(ranks)), key=lambda i: (-speeds[i], i))
    choice = best_group([speeds[i] for i in order], rates, num_atoms, most)
    members = sorted(zip(order, choice.atoms, strict=False))
    alike = len(set(choice.atoms)) == 1
    return Stage(tuple(ranks[i] for i, _ in members), tuple(1 if alike else atoms for _, atoms in members), (LayerRange(0, 1),))
