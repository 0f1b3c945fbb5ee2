"""Small changes to a layout, each giving a new valid value: other stages, other layers, ranks exchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lurcher.layout import LayerRange, Layout, Replica, Route, Stage, apportion

At = tuple[int, int]
"""Where a stage is: (replica, stage)."""


def with_stages(layout: Layout, changed: Mapping[At, Stage]) -> Layout:
    """Other stages at some places. Ranks that lose theirs go to standby, and standby ranks that get one leave it; routes stay."""
    replicas = tuple(
        Replica(tuple(changed.get((d, s), stage) for s, stage in enumerate(replica.stages)), replica.microbatches)
        for d, replica in enumerate(layout.replicas)
    )
    return with_replicas(layout, replicas)


def with_replicas(layout: Layout, replicas: Sequence[Replica], routes: Sequence[Route] | None = None) -> Layout:
    """Other replicas; every rank that then holds no stage is on standby. Routes stay unless given."""
    at_work = {rank for replica in replicas for stage in replica.stages for rank in stage.ranks}
    standby = tuple(sorted({*layout.ranks, *layout.standby} - at_work))
    kept = layout.routes if routes is None else tuple(routes)
    return Layout(layout.num_layers, layout.num_microbatches, tuple(replicas), standby, kept, layout.generation + 1)


def with_layers(replica: Replica, sizes: Sequence[int]) -> Replica:
    """The replica with `sizes[s]` layers on stage s. Where stages hold several chunks, each stage's layers are dealt out evenly over its own."""
    num_chunks = len(replica.stages[0].chunks)
    parts = [apportion(size, (1,) * num_chunks) for size in sizes]
    chunks: list[list[LayerRange]] = [[] for _ in sizes]
    first = 0
    for c in range(num_chunks):
        for s, part in enumerate(parts):
            chunks[s].append(LayerRange(first, first + part[c]))
            first += part[c]
    stages = tuple(Stage(stage.ranks, stage.shares, tuple(held)) for stage, held in zip(replica.stages, chunks, strict=True))
    return Replica(stages, replica.microbatches)


def exchanged(layout: Layout, partner: Mapping[int, int]) -> Layout:
    """Every rank r replaced by `partner[r]`, where it is in there: a permutation of ranks, standby included. All else stays."""
    assert sorted(partner) == sorted(partner.values())
    replicas = tuple(
        Replica(
            tuple(Stage(tuple(partner.get(r, r) for r in stage.ranks), stage.shares, stage.chunks) for stage in replica.stages), replica.microbatches
        )
        for replica in layout.replicas
    )
    standby = tuple(sorted(partner.get(r, r) for r in layout.standby))
    return Layout(layout.num_layers, layout.num_microbatches, replicas, standby, layout.routes, layout.generation + 1)


def groups_exchanged(layout: Layout, here: At, there: At) -> Layout:
    """The ranks of two stages, with their shares, have changed places; their layers stay where they are."""
    (d, s), (e, t) = here, there
    one, other = layout.replicas[d].stages[s], layout.replicas[e].stages[t]
    return with_stages(layout, {here: Stage(other.ranks, other.shares, one.chunks), there: Stage(one.ranks, one.shares, other.chunks)})
