"""Going on without dead ranks: smaller groups; for a stage that is gone, routes, a shorter pipeline, or one replica less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lurcher.layout import Layout, Replica, Stage, apportion
from lurcher.plan.edit import At, with_layers, with_replicas, with_stages
from lurcher.plan.layers import relayered
from lurcher.plan.resplit import split_action
from lurcher.plan.routing import emptied, replica_speeds, with_routes
from lurcher.plan.shares import best_shares
from lurcher.plan.situation import Candidate, Situation, improvements
from lurcher.plan.standby import reinforced, with_splits
from lurcher.plan.tensor_group import affected, degree_costs, most_atoms, speeds_of, stage_of
from lurcher.plan.words import rank_words, replica_words
from lurcher.records import Action, Plan

ROUTED_PARTS = (1.0, 0.75, 0.5, 0.25)
"""How many of its micro-batches a replica with an empty stage keeps: its other stages wait for guests that are busy elsewhere."""


def propose_without_dead(situation: Situation) -> tuple[Plan, ...]:
    """Every way to go on when ranks at work are dead; the price finds the best. Dead ranks are kept on standby, to be re-admitted."""
    dead = situation.dead_at_work()
    if not dead:
        return ()
    smaller, gone = _living_groups(situation)
    named = Action("tensor", f"go on without {rank_words(sorted(dead))}")
    whole = sorted({d for d, _ in gone})
    hit = sorted({d for d, s, stage in situation.layout.stages() if not dead.isdisjoint(stage.ranks)})
    empty = {(d, s) for d, s, stage in situation.layout.stages() if not stage.ranks}
    candidates = [] if gone - empty else [Candidate(with_stages(situation.layout, smaller), (named,))]
    candidates += _shorter(situation, smaller, gone, named)
    candidates += [found for drop in dict.fromkeys([tuple(whole), tuple(hit)]) for found in _fewer(situation, smaller, gone, drop)]
    routed = _routed(situation, smaller, gone, named)
    return improvements(situation, with_splits(situation, candidates) + list(routed))


def _living_groups(situation: Situation) -> tuple[dict[At, Stage], frozenset[At]]:
    """New groups for those with dead ranks, and the places that are empty or where too few ranks are left for the memory.

    Standby ranks help where there are some; otherwise the living go on alone, atoms shared by speed.
    """
    dead = situation.dead_at_work()
    broken = [(at, stage) for at, stage in affected(situation) if not dead.isdisjoint(stage.ranks)]
    smaller = reinforced(situation, [at for at, _ in broken])
    gone = {(d, s) for d, s, stage in situation.layout.stages() if not stage.ranks}
    for at, stage in broken:
        if at in smaller:
            continue
        speeds = speeds_of(situation, stage.ranks)
        members = best_shares(speeds, situation.num_atoms, most_atoms(situation, at), degree_costs(situation, len(speeds)))
        if members.ranks:
            smaller[at] = stage_of(stage, stage.ranks, members)
        else:
            gone.add(at)
    return smaller, frozenset(gone)


def _replica(layout: Layout, d: int, smaller: Mapping[At, Stage]) -> Replica:
    replica = layout.replicas[d]
    return Replica(tuple(smaller.get((d, s), stage) for s, stage in enumerate(replica.stages)), replica.microbatches)


def _shorter(situation: Situation, smaller: Mapping[At, Stage], gone: frozenset[At], named: Action) -> list[Candidate]:
    """Pipelines without the stages that are gone, their layers over the others. A replica without any stage left is no more, and the others run its work."""
    layout = situation.layout
    left = {d: [s for s in range(len(replica.stages)) if (d, s) not in gone] for d, replica in enumerate(layout.replicas)}
    going_on = [d for d in left if left[d]]
    if not gone or not going_on:
        return []
    freed = apportion(sum(layout.split[d] for d in left if not left[d]), [max(layout.split[d], 1) for d in going_on])
    replicas = [_without_stages(layout, _replica(layout, d, smaller), left[d], more) for d, more in zip(going_on, freed, strict=True)]
    hit = sorted({d for d, _ in gone if left[d]})
    recut = relayered(situation, with_replicas(layout, replicas, ()), [going_on.index(d) for d in hit]).layout
    over = sorted(d for d in left if not left[d])
    actions = [named]
    if hit:
        num = sum(1 for d, _ in gone if d in hit)
        actions.append(Action("relayer", f"{replica_words(hit)} with {num} stage{'s' * (num > 1)} less, the layers over the others"))
    if over:
        actions.append(Action("split", f"the micro-batches of {replica_words(over)} to the others"))
    return [Candidate(recut, tuple(actions))]


def _without_stages(layout: Layout, replica: Replica, left: Sequence[int], more: int) -> Replica:
    """The replica on the stages `left`, with so many more micro-batches; its layers evenly over them where any is gone."""
    kept = Replica(tuple(replica.stages[s] for s in left), replica.microbatches + more)
    return kept if len(left) == len(replica.stages) else with_layers(kept, apportion(layout.num_layers, (1,) * len(left)))


def _fewer(situation: Situation, smaller: Mapping[At, Stage], gone: frozenset[At], drop: Sequence[int]) -> Iterator[Candidate]:
    """Without the replicas in `drop`: their micro-batches go to the others, their living ranks stand by."""
    layout = situation.layout
    left = [d for d in range(len(layout.replicas)) if d not in drop]
    if not drop or not left or any(d in left for d, _ in gone):
        return
    freed = apportion(sum(layout.split[d] for d in drop), [max(layout.split[d], 1) for d in left])
    replicas = [Replica(_replica(layout, d, smaller).stages, layout.split[d] + more) for d, more in zip(left, freed, strict=True)]
    yield Candidate(with_replicas(layout, replicas, ()), (Action("standby", f"{replica_words(drop)} to standby, the micro-batches to the others"),))


def _routed(situation: Situation, smaller: Mapping[At, Stage], gone: frozenset[At], named: Action) -> Iterator[Candidate]:
    """Stages that are gone stay empty: other replicas run them for all micro-batches, of which the replica may keep fewer."""
    layout = situation.layout
    hit = sorted({d for d, _ in gone})
    others = [d for d in range(len(layout.replicas)) if d not in hit]
    if not gone or not others:
        return
    base = [emptied(_replica(layout, d, smaller), [s for e, s in gone if e == d]) for d in range(len(layout.replicas))]
    for part in ROUTED_PARTS:
        kept = [int(layout.split[d] * part) if d in hit else layout.split[d] for d in range(len(layout.replicas))]
        freed = apportion(layout.num_microbatches - sum(kept), [max(layout.split[d], 1) for d in others])
        for d, more in zip(others, freed, strict=True):
            kept[d] += more
        replicas = [Replica(replica.stages, m) for replica, m in zip(base, kept, strict=True)]
        counts = {(d, s): kept[d] for d, s in gone}
        routed = with_routes(layout, replicas, counts, replica_speeds(situation, replicas))
        if routed is not None:
            places = ", ".join(f"replica {d} stage {s}" for d, s in sorted(gone))
            yield Candidate(routed, (named, Action("migrate", f"the others run {places}"), *split_action(layout.split, tuple(kept))))
