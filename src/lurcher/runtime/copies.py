"""Copies of the training that survive the last owner of an atom: who keeps whose, and what of a cut is left. Torch-free and pure.

A cut is the state after some iteration. Each rank keeps its own, and one other rank's beside it. If the last owner of an atom dies,
its state after a later iteration is nowhere, so all ranks go back to the same cut: what a rank kept of it, and for the dead what
their holders kept.

Ranks keep for each other in pairs, one ring of three where their number is odd: of n ranks then about n / 2 pairs are those that lose a state
with its copy when both die at once, where one ring of all has n such pairs (GEMINI, SOSP 2023, places checkpoints in groups for this reason).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

import msgspec

from lurcher.config import ModelSection
from lurcher.errors import LurcherError
from lurcher.layout import Layout, Stage
from lurcher.runtime.messages import Cut
from lurcher.runtime.owners import Slice, cut_slices
from lurcher.runtime.shapes import tensor_specs
from lurcher.runtime.transfer import Move, least_moves

Cost = tuple[int, float]
"""Of one rank keeping for another: 1 on the same host, else 0; then how many layers they both hold."""
WHOLE = 0.01
"""Of a layer's state, the part that all ranks of a stage hold whole (norms): little, but lost with all of them."""
ROUNDS = 20
"""Most passes over all swaps. A pass that finds none ends it; two or three are the rule."""


def choose_holders(layout: Layout, hosts: Mapping[int, str]) -> dict[int, int]:
    """Who keeps a copy of each member's state: rank -> holder, each rank the holder of one other. Empty for a job of one rank.

    On another host where one has room, then a rank that shares least of the state, for what both hold dies with them together.
    `hosts` names each rank's host; ranks that it leaves out are taken to have one of their own.
    """
    members = _far_apart(layout, hosts)
    costs = _costs(layout, members, hosts)
    for _ in range(ROUNDS if len(members) > 2 else 0):
        if not _swapped(members, costs):
            break
    return {rank: holder for group in _groups(members) for rank, holder in _ring(group)}


def held_at(cut: Cut, model: ModelSection, lost: Collection[int]) -> tuple[Slice, ...]:
    """Every slice of the cut with the ranks that have its state: its owners and those that keep a copy for them, if they still live.

    `lost` ranks and those that the cut itself names have nothing of it; a slice that nobody has is there with no owners.
    """
    holder_of = dict(cut.holders)
    dead = {*lost, *cut.gone}
    found = []
    for piece in cut_slices(model, cut.layout):
        having = {*piece.owners, *(holder_of[rank] for rank in piece.owners if rank in holder_of)} - dead
        found.append(msgspec.structs.replace(piece, owners=tuple(sorted(having))))
    return tuple(found)


def moves_back(cut: Cut, model: ModelSection, lost: Collection[int], after: Sequence[Slice]) -> tuple[Move, ...]:
    """The least moves that bring the state of `cut` to the owners of the slices `after`; none at iteration 0, which every rank makes from the seed.

    Raises LurcherError with the atoms that even copies do not hold any more, and the ranks that held them.
    """
    if cut.iteration == 0:
        return ()
    held = held_at(cut, model, lost)
    _check_whole(cut, model, held)
    return least_moves(held, after, {spec.name: spec.atom_size for spec in tensor_specs(model)})


def _check_whole(cut: Cut, model: ModelSection, held: Sequence[Slice]) -> None:
    missing = [piece for piece, left in zip(cut_slices(model, cut.layout), held, strict=True) if not left.owners]
    if not missing:
        return
    holder_of = dict(cut.holders)
    owners = sorted({rank for piece in missing for rank in piece.owners})
    holders = sorted({holder_of[rank] for rank in owners if rank in holder_of})
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    copies = f", with copies on ranks {holders}" if holders else " and no copy was kept"
    raise LurcherError(f"{missing[0].name}{more} of the state after {cut.iteration} iterations lay on ranks {owners}{copies}: none of them is left")


# --- who keeps whose -----------------------------------------------------------------------------------------------------------


def _far_apart(layout: Layout, hosts: Mapping[int, str]) -> list[int]:
    """All members so that neighbours (1st and 2nd, 3rd and 4th ...) lie on different hosts as often as can be, and at different layers where all share one.

    Ordered by host, the largest first, rank i and rank i + half of them are on one host only where that host has more than half of all.
    """
    names = {rank: hosts.get(rank, f"the host of rank {rank}") for rank in layout.members}
    sizes = Counter(names.values())
    first_layer = {rank: stage.chunks[0].first for _, _, stage in layout.stages() for rank in stage.ranks if stage.chunks}
    order = sorted(names, key=lambda rank: (-sizes[names[rank]], names[rank], first_layer.get(rank, layout.num_layers), rank))
    half = len(order) // 2
    return [rank for pair in zip(order[:half], order[half:], strict=False) for rank in pair] + order[2 * half :]


def _costs(layout: Layout, members: Sequence[int], hosts: Mapping[int, str]) -> dict[tuple[int, int], Cost]:
    held = _held(layout)
    has_choice = len({hosts.get(rank, f"the host of rank {rank}") for rank in members}) > 1
    costs: dict[tuple[int, int], Cost] = {}
    for a, b in combinations(members, 2):
        together = has_choice and a in hosts and b in hosts and hosts[a] == hosts[b]
        costs[a, b] = costs[b, a] = int(together), _in_common(held.get(a), held.get(b))
    return costs


_Held = tuple[Stage, float, float]


def _held(layout: Layout) -> dict[int, _Held]:
    """Per working rank its stage, and from where to where its part of every layer's atoms reaches."""
    found = {}
    for _, _, stage in layout.stages():
        low = 0
        for rank, share in zip(stage.ranks, stage.shares, strict=True):
            found[rank] = (stage, low / sum(stage.shares), (low + share) / sum(stage.shares))
            low += share
    return found


def _in_common(one: _Held | None, other: _Held | None) -> float:
    """Layers that both hold, each counted by the part of it that both hold; where that is none, the norms."""
    if one is None or other is None:
        return 0.0
    layers = sum(max(0, min(a.end, b.end) - max(a.first, b.first)) for a in one[0].chunks for b in other[0].chunks)
    return layers * max(WHOLE, min(one[2], other[2]) - max(one[1], other[1]))


def _groups(members: Sequence[int]) -> list[tuple[int, ...]]:
    """Neighbours in pairs, the last three together where their number is odd; a single rank keeps for nobody."""
    if len(members) < 2:
        return []
    num_pairs = (len(members) - len(members) % 2 * 3) // 2
    groups = [tuple(members[2 * i : 2 * i + 2]) for i in range(num_pairs)]
    return groups + ([tuple(members[2 * num_pairs :])] if len(members) % 2 else [])


def _ring(group: Sequence[int]) -> list[tuple[int, int]]:
    return [(rank, group[(i + 1) % len(group)]) for i, rank in enumerate(group)]


def _swapped(members: list[int], costs: Mapping[tuple[int, int], Cost]) -> bool:
    """Exchange two members wherever that makes their groups cheaper; whether any exchange did."""
    group_of = [number for number, group in enumerate(_groups(members)) for _ in group]
    bounds = [(group_of.index(number), group_of.count(number)) for number in range(group_of[-1] + 1)]

    def cost(number: int) -> Cost:
        start, size = bounds[number]
        pairs = [costs[pair] for pair in _ring(members[start : start + size])]
        return sum(same for same, _ in pairs), sum(shared for _, shared in pairs)

    any_better = False
    for i, j in combinations(range(len(members)), 2):
        one, other = group_of[i], group_of[j]
        before = _sum(cost(one), cost(other))
        if one == other or before == (0, 0.0):
            continue
        members[i], members[j] = members[j], members[i]
        if _sum(cost(one), cost(other)) < before:
            any_better = True
        else:
            members[i], members[j] = members[j], members[i]
    return any_better


def _sum(a: Cost, b: Cost) -> Cost:
    return a[0] + b[0], round(a[1] + b[1], 9)
