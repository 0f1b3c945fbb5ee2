"""Every layout that the job ran under, one after the other: what changed, what moved, how long the job paused, and why."""

from __future__ import annotations

from dataclasses import dataclass

from lurcher.layout import Layout, Stage
from lurcher.records import Reconfiguration
from lurcher.report.load import Facts

MOST_REPLICAS = 16
"""Replicas drawn a generation; of more, those that changed first."""


@dataclass(frozen=True)
class StageBox:
    """One stage of a drawn layout. `width` is its layers in per cent of the model's."""

    layers: str
    ranks: str
    width: float
    changed: bool


@dataclass(frozen=True)
class ReplicaRow:
    """One replica of a drawn layout, and how many of its micro-batches run elsewhere in part."""

    replica: int
    microbatches: int
    routed: int
    stages: tuple[StageBox, ...]


@dataclass(frozen=True)
class Generation:
    """A layout in force from `iteration` on. The first one was not changed to: it has neither pause nor reason."""

    number: int
    iteration: int
    outcome: str
    reason: str
    pause_s: float | None
    bytes_moved: int | None
    replicas: tuple[ReplicaRow, ...]
    left_out: int
    standby: tuple[int, ...]


def generations(facts: Facts) -> list[Generation]:
    """The first layout and all that were carried out; empty where the layout never changed."""
    done = [change for change in facts.reconfigurations() if change.outcome in ("applied", "reverted")]
    if not done:
        return []
    layouts = [facts.layout, *(change.plan.layout for change in done)]
    first = int(facts.series.index[0]) if len(facts.series.index) else 0
    found = [_generation(facts.layout, facts.layout, first, None)]
    found += [_generation(before, change.plan.layout, change.iteration, change) for before, change in zip(layouts, done, strict=False)]
    return found


def _generation(before: Layout, layout: Layout, iteration: int, change: Reconfiguration | None) -> Generation:
    order = sorted(range(len(layout.replicas)), key=lambda d: (not _differs(before, layout, d), d))
    drawn = sorted(order[:MOST_REPLICAS])
    return Generation(
        number=change.generation if change else layout.generation,
        iteration=iteration,
        outcome=change.outcome if change else "start",
        reason=change.reason if change else "",
        pause_s=change.pause_s if change else None,
        bytes_moved=change.bytes_moved if change else None,
        replicas=tuple(_row(before, layout, d) for d in drawn),
        left_out=len(layout.replicas) - len(drawn),
        standby=layout.standby,
    )


def _differs(before: Layout, layout: Layout, d: int) -> bool:
    return d >= len(before.replicas) or before.replicas[d] != layout.replicas[d]


def _row(before: Layout, layout: Layout, d: int) -> ReplicaRow:
    replica = layout.replicas[d]
    old = before.replicas[d].stages if d < len(before.replicas) else ()
    home = layout.microbatches_of(d)
    routed = len({route.microbatch for route in layout.routes if route.microbatch in home})
    boxes = tuple(_box(stage, layout.num_layers, s >= len(old) or old[s] != stage) for s, stage in enumerate(replica.stages))
    return ReplicaRow(d, replica.microbatches, routed, boxes)


def _box(stage: Stage, num_layers: int, changed: bool) -> StageBox:
    layers = ", ".join(f"{chunk.first}–{chunk.end - 1}" if len(chunk) > 1 else str(chunk.first) for chunk in stage.chunks)
    equal = len(set(stage.shares)) <= 1
    ranks = ", ".join(str(rank) if equal else f"{rank} ({share}/{sum(stage.shares)})" for rank, share in zip(stage.ranks, stage.shares, strict=True))
    return StageBox(layers, ranks or "none, all routed", 100.0 * stage.num_layers / num_layers, changed)
