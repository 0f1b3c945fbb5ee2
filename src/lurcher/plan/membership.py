"""Which ranks of a tensor group should go on: the equal-share answer to a slow or dead member. Who leaves stands by."""

from __future__ import annotations

from collections.abc import Sequence

from lurcher.layout import Stage
from lurcher.plan.edit import At
from lurcher.plan.situation import Situation, improvements
from lurcher.plan.tensor_group import DegreeCosts, Members, affected, degree_costs, fastest, group_time, most_atoms, regrouped, speeds_of, stage_of
from lurcher.records import Plan


def power_of_two(speeds: Sequence[float], least: int = 1) -> tuple[int, ...]:
    """ResiHP's selective exclusion as published: the members S_k that maximise k * min speed over k in powers of two, k >= `least`.

    `speeds` are normalised (1.0 healthy, 0.0 dead); S_k are the k fastest, and the larger group wins a tie. Returns indices;
    none when no degree is left.
    """
    alive = sum(speed > 0 for speed in speeds)
    degrees = [2**i for i in range(alive.bit_length()) if least <= 2**i <= alive]
    if not degrees:
        return ()
    return fastest(speeds, max(degrees, key=lambda k: (k * min(speeds[i] for i in fastest(speeds, k)), k)))


def any_degree(speeds: Sequence[float], num_atoms: int, most: int, costs: DegreeCosts) -> Members:
    """The members of the best degree of any size, when `num_atoms` are shared as evenly as they go.

    Minimises `group_time` over the k fastest members, no one with more than `most` atoms (memory). Where atoms do not
    divide, the faster members take one more. The larger group wins a tie.
    """
    best_time, best = float("inf"), Members()
    for k in range(min(sum(speed > 0 for speed in speeds), num_atoms), 0, -1):
        if -(-num_atoms // k) > most:
            break
        members = _even(speeds, fastest(speeds, k), num_atoms)
        time = group_time(speeds, members, costs)
        if time < best_time * (1 - 1e-12):
            best_time, best = time, members
    return best


def propose_membership(situation: Situation) -> tuple[Plan, ...]:
    """Groups with slow or dead members go on with fewer: in any degree, and in powers of two as published."""
    if not situation.answers("tensor"):
        return ()
    free: dict[At, Stage] = {}
    published: dict[At, Stage] = {}
    for at, stage in affected(situation):
        speeds, most = speeds_of(situation, stage.ranks), most_atoms(situation, at)
        members = any_degree(speeds, situation.num_atoms, most, degree_costs(situation, len(speeds)))
        if members.ranks:
            free[at] = stage_of(stage, stage.ranks, members)
            powers = power_of_two(speeds, -(-situation.num_atoms // most))
            if powers:
                published[at] = stage_of(stage, stage.ranks, Members(powers, (1,) * len(powers)))
    return improvements(situation, regrouped(situation, free) + regrouped(situation, published))


def _even(speeds: Sequence[float], ranks: tuple[int, ...], num_atoms: int) -> Members:
    """Equal numbers of atoms, the rest one each to the fastest."""
    base, more = divmod(num_atoms, len(ranks))
    luckier = set(fastest([speeds[i] for i in ranks], more))
    return Members(ranks, tuple(base + (j in luckier) for j in range(len(ranks))))
