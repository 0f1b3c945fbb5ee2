"""Routes for some micro-batches of a stage: which ones, and to which replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from lurcher.layout import LayerRange, Layout, Replica, Route, Stage
from lurcher.plan.edit import At, with_replicas
from lurcher.plan.situation import Situation
from lurcher.plan.tensor_group import speeds_of


def with_routes(layout: Layout, replicas: Sequence[Replica], counts: Mapping[At, int], speeds: Sequence[float]) -> Layout | None:
    """The layout with these replicas, where `counts[d, s]` micro-batches of a stage run elsewhere, evenly spaced over the iteration.

    They are dealt out over the replicas that hold the stage's layers, `speeds` (one a replica) saying how much each takes;
    a replica that gives micro-batches away itself takes none. A stage without ranks stays only if all its micro-batches
    leave. None where no replica can take them.
    """
    routes: list[Route] = []
    giving = {d for (d, _), count in counts.items() if count}
    firsts = [0, *accumulate(replica.microbatches for replica in replicas)]
    for (d, s), count in sorted(counts.items()):
        if not count:
            continue
        chosen = [firsts[d] + (2 * k + 1) * replicas[d].microbatches // (2 * count) for k in range(count)]
        for chunk in replicas[d].stages[s].chunks:
            holders = {e: places for e, replica in enumerate(replicas) if e not in giving and (places := _holders(replica, chunk))}
            if not holders:
                return None
            for microbatch, target in zip(chosen, _deal(sorted(holders), [speeds[e] for e in sorted(holders)], count), strict=True):
                routes += [Route(microbatch, part, target, t) for t, part in holders[target]]
    return with_replicas(layout, replicas, sorted(routes))


def emptied(replica: Replica, empty: Sequence[int]) -> Replica:
    """The replica with these stages left without ranks."""
    stages = tuple(Stage((), (), stage.chunks) if s in empty else stage for s, stage in enumerate(replica.stages))
    return Replica(stages, replica.microbatches)


def replica_speeds(situation: Situation, replicas: Sequence[Replica]) -> list[float]:
    """How much each replica may take of what others give away: its slowest living rank's speed."""
    found = []
    for replica in replicas:
        speeds = speeds_of(situation, [rank for stage in replica.stages for rank in stage.ranks])
        found.append(min((speed for speed in speeds if speed > 0), default=1.0))
    return found


def _holders(replica: Replica, chunk: LayerRange) -> list[tuple[int, LayerRange]]:
    """The stages of a replica that hold the layers of a chunk, each with its part; none if one of them is empty."""
    found = []
    for t, stage in enumerate(replica.stages):
        for held in stage.chunks:
            part = LayerRange(max(held.first, chunk.first), min(held.end, chunk.end))
            if part.first < part.end:
                if not stage.ranks:
                    return []
                found.append((t, part))
    return sorted(found, key=lambda one: one[1])


def _deal(targets: Sequence[int], speeds: Sequence[float], count: int) -> list[int]:
    """`count` turns over the targets, each as often as its speed says: always to the one that would be done first."""
    taken = [0] * len(targets)
    order = []
    for _ in range(count):
        i = min(range(len(targets)), key=lambda k: ((taken[k] + 1) / speeds[k], k))
        taken[i] += 1
        order.append(targets[i])
    return order
