"""What a tensor group can do with its ranks: their speeds, how many atoms fit on one, what each degree costs; and the layouts that come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lurcher.layout import Stage
from lurcher.model.schedule import live_microbatches
from lurcher.plan.edit import At, with_stages
from lurcher.plan.situation import Candidate, Situation
from lurcher.records import Action

MOST_SINGLE_GROUPS = 8
"""Up to so many affected groups are also offered one by one; beyond, all at once only."""


class Members(NamedTuple):
    """Who goes on in a group, as indices of its ranks in rising order, and the atoms of each. Both empty: the group cannot go on."""

    ranks: tuple[int, ...] = ()
    atoms: tuple[int, ...] = ()


class DegreeCosts(NamedTuple):
    """By degree, [k - 1]: the speed of each of k ranks, and what their all-reduces take, in layers of one healthy device."""

    efficiency: tuple[float, ...]
    overhead: tuple[float, ...]


def degree_costs(situation: Situation, largest: int) -> DegreeCosts:
    """For degrees up to `largest`, with healthy links inside a node."""
    rates = situation.rates
    layer_s = rates.forward_s + rates.backward_s + rates.weight_s
    all_reduce_s = 2 * 2 * rates.tp_bytes / rates.node_bytes_per_s if rates.node_bytes_per_s else 0.0  # forward and backward, twice the bytes each
    degrees = range(1, largest + 1)
    return DegreeCosts(tuple(rates.efficiency(k) for k in degrees), tuple(all_reduce_s * (k - 1) / k / layer_s for k in degrees))


def group_time(speeds: Sequence[float], members: Members, costs: DegreeCosts) -> float:
    """Time of a layer on the group, relative to one healthy device that holds all of it."""
    degree = len(members.ranks) - 1
    longest = max(n / speeds[i] for i, n in zip(members.ranks, members.atoms, strict=True))
    return longest / (sum(members.atoms) * costs.efficiency[degree]) + costs.overhead[degree]


def fastest(speeds: Sequence[float], count: int) -> tuple[int, ...]:
    """Indices of the `count` fastest, in rising order; among equals the earlier stay."""
    return tuple(sorted(sorted(range(len(speeds)), key=lambda i: (-speeds[i], i))[:count]))


def speeds_of(situation: Situation, ranks: Sequence[int]) -> tuple[float, ...]:
    """1.0 healthy, 0.0 dead."""
    return tuple(1.0 / situation.rates.rank_slowdown(rank) for rank in ranks)


def affected(situation: Situation) -> list[tuple[At, Stage]]:
    """The stages that have a slow or dead rank."""
    ill = {rank for rank, slowdown in situation.rates.slowdown.items() if slowdown > 1.0}.union(situation.rates.dead)
    return [((d, s), stage) for d, s, stage in situation.layout.stages() if not ill.isdisjoint(stage.ranks)]


def most_atoms(situation: Situation, at: At) -> int:
    """How many of a layer's atoms a rank of this stage has memory for; all of them where memory is unlimited."""
    rates, (d, s) = situation.rates, at
    if not rates.device_bytes:
        return situation.num_atoms
    replica = situation.layout.replicas[d]
    num_stages = len(replica.stages)
    layers = replica.stages[s].num_layers + rates.embed_layers * (s == 0) + rates.head_layers * (s == num_stages - 1)
    live = live_microbatches(situation.schedule, num_stages, s, replica.microbatches)
    whole = layers * (rates.layer_bytes + rates.activation_bytes * live)
    if not whole:
        return situation.num_atoms
    return max(0, min(situation.num_atoms, int(situation.num_atoms * (rates.device_bytes - rates.staging_bytes) / whole + 1e-9)))


def stage_of(stage: Stage, ranks: Sequence[int], members: Members) -> Stage:
    """The stage on the members of `ranks`, with their atoms as shares: 1 each where they are equal."""
    alike = len(set(members.atoms)) == 1
    return Stage(tuple(ranks[i] for i in members.ranks), (1,) * len(members.atoms) if alike else members.atoms, stage.chunks)


def regrouped(situation: Situation, changed: Mapping[At, Stage]) -> list[Candidate]:
    """The layout with all these groups, and with each of them alone: a smaller group also has more gradients to sum."""
    present = situation.layout.replicas
    different = {at: stage for at, stage in changed.items() if stage != present[at[0]].stages[at[1]]}
    sets = [different] if different else []
    if 1 < len(different) <= MOST_SINGLE_GROUPS:
        sets += [{at: stage} for at, stage in different.items()]
    return [
        Candidate(
            with_stages(situation.layout, some),
            tuple(Action("tensor", _words(present[d].stages[s], stage, d, s)) for (d, s), stage in some.items()),
        )
        for some in sets
    ]


def _words(before: Stage, after: Stage, d: int, s: int) -> str:
    gone = [str(rank) for rank in before.ranks if rank not in after.ranks]
    who = f"without rank{'s' * (len(gone) > 1)} {', '.join(gone)}, TP{before.tp_size} -> TP{after.tp_size}" if gone else "with all its ranks"
    parts = "" if len(set(after.shares)) == 1 else f", atoms {'/'.join(map(str, after.shares))}"
    return f"replica {d} stage {s} goes on {who}{parts}"
