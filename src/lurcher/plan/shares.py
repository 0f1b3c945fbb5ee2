"""Unequal shares inside a tensor group: a slow rank keeps fewer atoms, so that it neither leaves nor holds back its mates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lurcher.layout import Stage, apportion
from lurcher.plan.edit import At
from lurcher.plan.situation import Situation, improvements
from lurcher.plan.split import min_max_split
from lurcher.plan.tensor_group import DegreeCosts, Members, affected, degree_costs, fastest, group_time, most_atoms, regrouped, speeds_of, stage_of
from lurcher.records import Plan


def best_shares(speeds: Sequence[float], num_atoms: int, most: int, costs: DegreeCosts, present: Sequence[int] = ()) -> Members:
    """The members of a group and their atoms that minimise `group_time`: exact.

    Of k members the k fastest are best (exchange a slower for a faster one: no time rises), and for given members the
    atoms are an exact min-max split, at least one and no more than `most` (memory) each. `speeds` are normalised (1.0
    healthy, 0.0 dead). Ties go to the smaller group, whose other ranks then stand by for the next fault, then to the atoms nearest to
    `present` (one entry a rank; default even).
    """
    best_time, best = float("inf"), Members()
    for k in range(min(sum(speed > 0 for speed in speeds), num_atoms), 0, -1):
        if k * most < num_atoms:
            break
        ranks = fastest(speeds, k)
        tables = [np.arange(min(most, num_atoms) + 1) / speeds[i] for i in ranks]
        near = [present[i] for i in ranks] if len(present) else None
        members = Members(ranks, min_max_split(tables, num_atoms, present=near))
        time = group_time(speeds, members, costs)
        if time <= best_time * (1 + 1e-12):
            best_time, best = min(time, best_time), members
    return best


def propose_shares(situation: Situation) -> tuple[Plan, ...]:
    """Groups with slow or dead members share their atoms by speed."""
    if not situation.answers("tensor"):
        return ()
    changed: dict[At, Stage] = {}
    for at, stage in affected(situation):
        speeds = speeds_of(situation, stage.ranks)
        present = apportion(situation.num_atoms, stage.shares)
        members = best_shares(speeds, situation.num_atoms, most_atoms(situation, at), degree_costs(situation, len(speeds)), present)
        if members.ranks:
            changed[at] = stage_of(stage, stage.ranks, members)
    return improvements(situation, regrouped(situation, changed))
