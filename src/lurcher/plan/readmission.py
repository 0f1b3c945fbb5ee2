"""Recovered ranks back to work: into groups that are smaller than others, stages that are empty, or a replica of their own."""

from __future__ import annotations

from collections.abc import Mapping

from lurcher.layout import Layout, Replica, Route, Stage
from lurcher.plan.edit import At, with_replicas
from lurcher.plan.shares import best_shares
from lurcher.plan.situation import Candidate, Situation, improvements
from lurcher.plan.standby import largest_group, reinforced, usable, with_splits
from lurcher.plan.tensor_group import degree_costs, fastest, speeds_of, stage_of
from lurcher.plan.words import rank_words
from lurcher.records import Action, Plan


def propose_readmission(situation: Situation) -> tuple[Plan, ...]:
    """Standby ranks that live, back to work. It answers no fault, so no cause is asked for."""
    layout = situation.layout
    largest = largest_group(layout)
    small = [(d, s) for d, s, stage in layout.stages() if stage.tp_size < largest]
    changed = reinforced(situation, small)
    candidates = [_filled(layout, changed)] if changed else []
    added = _another_replica(situation)
    return improvements(situation, with_splits(situation, candidates + ([added] if added else [])))


def _filled(layout: Layout, changed: Mapping[At, Stage]) -> Candidate:
    """The layout with these groups. Where a stage was empty, its micro-batches come home."""
    home = [d for d, replica in enumerate(layout.replicas) for _ in range(replica.microbatches)]
    back = [(d, chunk) for d, s in changed if not layout.replicas[d].stages[s].ranks for chunk in layout.replicas[d].stages[s].chunks]

    def comes_home(route: Route) -> bool:
        return any(home[route.microbatch] == d and route.chunk.first in chunk for d, chunk in back)

    replicas = [
        Replica(tuple(changed.get((d, s), stage) for s, stage in enumerate(replica.stages)), replica.microbatches)
        for d, replica in enumerate(layout.replicas)
    ]
    after = with_replicas(layout, replicas, [route for route in layout.routes if not comes_home(route)])
    texts = [
        f"{rank_words([rank for rank in stage.ranks if rank in layout.standby])} back to replica {d} stage {s}" for (d, s), stage in changed.items()
    ]
    return Candidate(after, tuple(Action("readmit", text) for text in texts))


def _another_replica(situation: Situation) -> Candidate | None:
    """One more replica, cut as the first one, on standby ranks: each stage on one node. Its micro-batches come with the split."""
    layout, largest = situation.layout, largest_group(situation.layout)
    groups: list[list[int]] = []
    for waiting in usable(situation).values():
        speeds = speeds_of(situation, waiting)
        ranked = [waiting[i] for i in sorted(range(len(waiting)), key=lambda i: (-speeds[i], i))]
        groups += [sorted(ranked[first : first + largest]) for first in range(0, len(ranked), largest)]
    groups = [group for _, group in sorted(enumerate(groups), key=lambda one: (-len(one[1]), one[0]))]
    template = layout.replicas[0].stages
    if len(groups) < len(template):
        return None
    stages = []
    for stage, ranks in zip(template, groups, strict=False):
        speeds = speeds_of(situation, ranks)
        first = fastest(speeds, min(len(ranks), situation.num_atoms))
        members = best_shares([speeds[i] for i in first], situation.num_atoms, situation.num_atoms, degree_costs(situation, len(ranks)))
        stages.append(stage_of(stage, [ranks[i] for i in first], members))
    after = with_replicas(layout, [*layout.replicas, Replica(tuple(stages), 0)])
    used = [rank for stage in stages for rank in stage.ranks]
    return Candidate(after, (Action("readmit", f"{rank_words(used)} back as replica {len(layout.replicas)}"),))
