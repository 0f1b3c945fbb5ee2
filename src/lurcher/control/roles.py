"""What a rank's work costs in another role than the one it was learned in.

The predictor knows each rank by what it did: so many layers, embedding or head or neither. Under another layout a rank may get
more layers, or the head, and be off by some per cent without being slower. How much follows from what the ends are worth in layers;
in its first iterations there the rank's own level is measured, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from statistics import median
from typing import NamedTuple

from lurcher.layout import Layout

LEARN_ITERATIONS = 5
"""Iterations in a new role until its level is measured; the detector learns its level anew for as long."""
MOST_OFF = 0.10
"""A measured level is not further from the expected one: what is beyond that is no role's doing, but the rank's."""


class Role(NamedTuple):
    """What a rank holds: layers, its part of them, and whether the model's first and last layer are among them."""

    num_layers: int
    part: float
    first: bool
    last: bool


class Ends(NamedTuple):
    """What embedding and head are worth, in layers."""

    embed_layers: float = 0.0
    head_layers: float = 0.0

    def weight(self, role: Role) -> float:
        """Work over that of the layers alone."""
        return 1.0 + (self.embed_layers * role.first + self.head_layers * role.last) / role.num_layers


def roles_of(layout: Layout) -> dict[int, Role]:
    """The role of every working rank."""
    found = {}
    for _, _, stage in layout.stages():
        ends = any(chunk.first == 0 for chunk in stage.chunks), any(chunk.end == layout.num_layers for chunk in stage.chunks)
        for rank, share in zip(stage.ranks, stage.shares, strict=True):
            found[rank] = Role(stage.num_layers, round(share / sum(stage.shares), 6), *ends)
    return found


class Roles:
    """Levels of ranks in the roles of a layout, against those in which the predictor learned them."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._learned = roles_of(layout)
        self._present = self._learned
        self._generation = layout.generation
        self._ends = Ends()
        self._seen: dict[int, list[float]] = {}
        self._measured: dict[int, float] = {}

    @property
    def changed(self) -> frozenset[int]:
        """Ranks whose role is not the one that the predictor learned: nothing is to be learned from them."""
        return frozenset(rank for rank, role in self._present.items() if self._learned.get(rank, role) != role)

    def enter(self, layout: Layout, ends: Ends) -> None:
        """The layout of the next iterations. Measured levels are kept where the role is."""
        before, self._present, self._generation, self._ends = self._present, roles_of(layout), layout.generation, ends
        kept = {rank for rank in self.changed if self._present[rank] == before.get(rank)}
        self._measured = {rank: level for rank, level in self._measured.items() if rank in kept}
        self._seen = {}

    def is_new(self, layout: Layout) -> bool:
        """Whether this layout has not been entered."""
        return layout.generation != self._generation

    def levels(self, layout: Layout) -> dict[int, float]:
        """The level of every rank that has another role in this layout: as measured where it is in force, else as expected."""
        if all(one.stages == other.stages for one, other in zip(layout.replicas, self._layout.replicas, strict=False)):
            return {}
        measured = self._measured if layout.generation == self._generation else {}
        roles = self._present if layout.generation == self._generation else roles_of(layout)
        return {rank: measured.get(rank) or self._expected(rank, role) for rank, role in roles.items() if self._learned.get(rank, role) != role}

    def corrected(self, ratios: Mapping[int, float], slow: Collection[int]) -> dict[int, float]:
        """One iteration's ratios to the own history, with what the roles do divided out; of ranks that are not known to be `slow` it is measured."""
        changed = self.changed
        if not changed:
            return dict(ratios)
        common = median([ratio for rank, ratio in ratios.items() if rank not in changed and rank not in slow] or [1.0])
        found = {}
        for rank, ratio in ratios.items():
            level = 1.0
            if rank in changed:
                level = self._measured.get(rank) or self._expected(rank, self._present[rank])
                if rank not in slow and rank not in self._measured:
                    self._measure(rank, ratio / common, level)
            found[rank] = ratio / level
        return found

    def _measure(self, rank: int, ratio: float, expected: float) -> None:
        seen = self._seen.setdefault(rank, [])
        seen.append(ratio)
        if len(seen) == LEARN_ITERATIONS:
            self._measured[rank] = expected * min(max(median(seen) / expected, 1.0 - MOST_OFF), 1.0 + MOST_OFF)

    def _expected(self, rank: int, role: Role) -> float:
        return self._ends.weight(role) / self._ends.weight(self._learned[rank])
