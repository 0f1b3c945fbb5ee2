"""The tensor and the data step of ResiHP's scheduler, as published: who stays in a group, and which micro-batches go elsewhere."""

from __future__ import annotations

from lurcher.layout import Stage
from lurcher.plan.edit import At, with_stages
from lurcher.plan.membership import power_of_two
from lurcher.plan.migration import propose_migration
from lurcher.plan.resplit import propose_resplit
from lurcher.plan.situation import Candidate, Situation, improvements
from lurcher.plan.standby import largest_group, usable
from lurcher.plan.tensor_group import affected, fastest, most_atoms, speeds_of
from lurcher.plan.words import rank_words
from lurcher.records import Action, Plan


def propose_exclusion(situation: Situation) -> tuple[Plan, ...]:
    """ResiHP's selective exclusion: of each group with a slow or dead rank those members, a power of two of them, that maximise count x slowest speed.

    Ranks that stand by on the group's node are members like its own, but no group grows beyond the largest one. Who is left out stands by.
    """
    if not situation.answers("tensor"):
        return ()
    pool = usable(situation)
    limit = min(largest_group(situation.layout), situation.num_atoms)
    changed: dict[At, Stage] = {}
    actions: list[Action] = []
    slowest_first = sorted(affected(situation), key=lambda one: (min(speeds_of(situation, one[1].ranks)), one[0]))
    for at, stage in slowest_first:
        nodes = {situation.rates.node(rank) for rank in stage.ranks}
        waiting = pool.get(min(nodes), []) if len(nodes) == 1 else []
        ranks = [*stage.ranks, *waiting]
        first = fastest(speeds_of(situation, ranks), limit)
        chosen = power_of_two(speeds_of(situation, [ranks[i] for i in first]), -(-situation.num_atoms // max(1, most_atoms(situation, at))))
        members = tuple(ranks[first[i]] for i in chosen)
        if members and set(members) != set(stage.ranks):
            changed[at] = Stage(members, (1,) * len(members), stage.chunks)
            actions.append(_action(stage, members, at))
            pool = {node: [rank for rank in ranks if rank not in members] for node, ranks in pool.items()}
    return improvements(situation, [Candidate(with_stages(situation.layout, changed), tuple(actions))]) if changed else ()


def propose_shift(situation: Situation) -> tuple[Plan, ...]:
    """Micro-batches away from slow stages: single stages of them to other replicas, or whole ones by another split; the best first."""
    return tuple(sorted((*propose_migration(situation), *propose_resplit(situation)), key=lambda plan: plan.predicted_s))


def _action(before: Stage, members: tuple[int, ...], at: At) -> Action:
    gone = [rank for rank in before.ranks if rank not in members]
    joined = [rank for rank in members if rank not in before.ranks]
    where = f"replica {at[0]} stage {at[1]}"
    if joined:
        return Action("standby", f"{rank_words(joined)} to {where} in place of {rank_words(gone)}")
    return Action("tensor", f"{where} goes on without {rank_words(gone)}, TP{before.tp_size} -> TP{len(members)}")
