"""Who exchanges activations and gradients with whom, between neighbouring stages.

A hop leads from a stage with a ranks to one with b ranks, where a and b may differ: rank j of the receiving stage gets its
copy from rank j mod a of the sending one, in either direction, so exactly one copy reaches every receiver.
"""

from __future__ import annotations

from typing import NamedTuple

from lurcher.layout import Layout, Stage


class Hop(NamedTuple):
    """What a rank exchanges with one neighbouring stage: whom it receives from, whom it sends to."""

    source: int
    targets: tuple[int, ...]


class Hops(NamedTuple):
    """A rank's hops to the stage before and the one behind; None at the pipeline's ends."""

    before: Hop | None
    behind: Hop | None

    @classmethod
    def of(cls, layout: Layout, rank: int) -> Hops:
        """The hops of `rank`."""
        where = layout.position(rank)
        stages = layout.replicas[where.dp].stages
        own = stages[where.pp]
        before = _between(own, where.tp, stages[where.pp - 1]) if where.pp > 0 else None
        behind = _between(own, where.tp, stages[where.pp + 1]) if where.pp + 1 < len(stages) else None
        return cls(before, behind)

    @property
    def ranks(self) -> frozenset[int]:
        """Everybody at the other end of a hop."""
        return frozenset(rank for hop in self if hop is not None for rank in (hop.source, *hop.targets))


def partners(layout: Layout, rank: int) -> tuple[int, ...]:
    """The ranks that `rank` exchanges with directly: the mates of its stage and the other ends of its hops, sorted. None for a standby."""
    if rank not in layout.ranks:
        return ()
    where = layout.position(rank)
    mates = layout.replicas[where.dp].stages[where.pp].ranks
    return tuple(sorted((Hops.of(layout, rank).ranks | set(mates)) - {rank}))


def _between(own: Stage, tp_rank: int, other: Stage) -> Hop:
    """Seen from rank `tp_rank` of stage `own`."""
    targets = tuple(rank for i, rank in enumerate(other.ranks) if i % own.tp_size == tp_rank)
    return Hop(other.ranks[tp_rank % other.tp_size], targets)
