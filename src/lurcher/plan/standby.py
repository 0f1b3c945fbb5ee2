"""Standby ranks to work, in place of slow or dead ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lurcher.layout import Layout, Stage, apportion
from lurcher.plan.edit import At, with_stages
from lurcher.plan.resplit import resplit
from lurcher.plan.shares import best_shares
from lurcher.plan.situation import Candidate, Situation, improvements
from lurcher.plan.tensor_group import Members, affected, degree_costs, fastest, group_time, most_atoms, speeds_of, stage_of
from lurcher.plan.words import rank_words
from lurcher.records import Action, Plan

Pool = dict[int, list[int]]
"""Usable standby ranks by node."""


def usable(situation: Situation) -> Pool:
    """Standby ranks that live, by node, nodes in rising order."""
    found: Pool = {}
    for rank in sorted(set(situation.layout.standby).difference(situation.rates.dead)):
        found.setdefault(situation.rates.node(rank), []).append(rank)
    return dict(sorted(found.items()))


def largest_group(layout: Layout) -> int:
    """Ranks of the largest tensor group: no group is made larger."""
    return max(stage.tp_size for _, _, stage in layout.stages())


def propose_standby(situation: Situation) -> tuple[Plan, ...]:
    """Groups with slow or dead ranks get standby ranks of their node, or move to standby ranks of another."""
    if not situation.answers("standby"):
        return ()
    layout = situation.layout
    changed = reinforced(situation, [at for at, _ in affected(situation)])
    if not changed:
        return ()
    actions = tuple(Action("standby", _words(stage, layout.replicas[d].stages[s], d, s)) for (d, s), stage in changed.items())
    return improvements(situation, with_splits(situation, [Candidate(with_stages(layout, changed), actions)]))


def with_splits(situation: Situation, candidates: Iterable[Candidate]) -> list[Candidate]:
    """Each candidate with the best split on top, and as it is."""
    return [one for candidate in candidates for one in (resplit(situation, candidate), candidate)]


def reinforced(situation: Situation, places: Sequence[At]) -> dict[At, Stage]:
    """For each place, slowest first, the fastest group out of its own ranks and the standby ranks of one node; each rank used once."""
    pool = usable(situation)
    layout = situation.layout
    limit = min(largest_group(layout), situation.num_atoms)
    costs = degree_costs(situation, limit)
    present_s = {at: _present_time(situation, layout.replicas[at[0]].stages[at[1]]) for at in places}
    changed: dict[At, Stage] = {}
    for at in sorted(places, key=lambda place: (-present_s[place], place)):
        stage = layout.replicas[at[0]].stages[at[1]]
        best_s, best = present_s[at], stage
        home = {situation.rates.node(rank) for rank in stage.ranks}
        for node, waiting in pool.items():
            ranks = [*stage.ranks, *waiting] if home == {node} else waiting
            speeds = speeds_of(situation, ranks)
            first = fastest(speeds, limit)
            members = best_shares([speeds[i] for i in first], situation.num_atoms, most_atoms(situation, at), costs)
            time_s = group_time([speeds[i] for i in first], members, costs) if members.ranks else float("inf")
            if time_s < best_s * (1 - 1e-9):
                best_s, best = time_s, stage_of(stage, [ranks[i] for i in first], members)
        if best is not stage:
            changed[at] = best
            pool = {node: [rank for rank in ranks if rank not in best.ranks] for node, ranks in pool.items()}
    return changed


def _present_time(situation: Situation, stage: Stage) -> float:
    """`group_time` of a stage as it is, infinite for an empty or dead one."""
    speeds = speeds_of(situation, stage.ranks)
    if not speeds or min(speeds) == 0.0:
        return float("inf")
    atoms = apportion(situation.num_atoms, stage.shares)
    return group_time(speeds, Members(tuple(range(len(speeds))), atoms), degree_costs(situation, len(speeds)))


def _words(stage: Stage, before: Stage, d: int, s: int) -> str:
    gone = [rank for rank in before.ranks if rank not in stage.ranks]
    joined = [rank for rank in stage.ranks if rank not in before.ranks]
    leave = f" in place of {rank_words(gone)}" if gone else ""
    return f"{rank_words(joined)} to replica {d} stage {s}{leave}"
