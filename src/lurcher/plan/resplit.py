"""Other micro-batch counts per replica from given rates: GREYHOUND's S2 on the walk's T_i(m)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lurcher.layout import Layout
from lurcher.model.price import replica_tables_many
from lurcher.model.stage_table import Floats
from lurcher.plan.situation import Candidate, Situation, improvements
from lurcher.plan.split import min_max_split
from lurcher.plan.words import split_words
from lurcher.records import Action, Plan

MOST_OF_EVEN = 4
"""A replica gets at most so many times the even share; it matters only with more than so many replicas, most of them very slow."""


def best_split(situation: Situation, layout: Layout) -> tuple[int, ...]:
    """The best split of one layout; see `best_splits`."""
    return best_splits(situation, [layout])[0]


def best_splits(situation: Situation, layouts: Sequence[Layout]) -> list[tuple[int, ...]]:
    """For each layout the split that minimises its slowest replica, exactly; the one it has where none fits.

    Of the best splits the one nearest to the situation's is taken, where that has as many replicas. A replica that cannot
    run (a dead rank) gets nothing. Layouts with empty stages keep their split: their routes name micro-batches.
    """
    found = [layout.split for layout in layouts]
    free = [i for i, layout in enumerate(layouts) if all(stage.ranks for _, _, stage in layout.stages())]
    cap = max((_cap(layouts[i]) for i in free), default=0)
    many = replica_tables_many([layouts[i] for i in free], situation.rates, cap, situation.schedule)
    for i, tables in zip(free, many, strict=True):
        found[i] = _split(situation, layouts[i], tables)
    return found


def _cap(layout: Layout) -> int:
    return min(layout.num_microbatches, MOST_OF_EVEN * -(-layout.num_microbatches // len(layout.replicas)))


def _split(situation: Situation, layout: Layout, tables: Sequence[Floats]) -> tuple[int, ...]:
    running = [table[: int(np.searchsorted(table, np.inf))] for table in tables]
    if sum(len(table) - 1 for table in running) < layout.num_microbatches:
        return layout.split
    present = situation.layout.split
    return min_max_split(running, layout.num_microbatches, 0, present if len(present) == len(layout.split) else layout.split)


def resplit(situation: Situation, candidate: Candidate) -> Candidate:
    """The candidate with the best split on top; itself where that is the one it has."""
    split = best_split(situation, candidate.layout)
    if split == candidate.layout.split:
        return candidate
    return Candidate(candidate.layout.with_split(split), (*candidate.actions, *split_action(candidate.layout.split, split)))


def split_action(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[Action, ...]:
    """The change of split in words; none where there is none."""
    if before == after:
        return ()
    moved = sum(max(0, a - b) for a, b in zip(before, after, strict=True))
    return (Action("split", f"move {moved} micro-batch{'es' * (moved > 1)} between replicas ({split_words(before)} -> {split_words(after)})"),)


def propose_resplit(situation: Situation) -> tuple[Plan, ...]:
    """The present layout with the best split."""
    if not situation.answers("split"):
        return ()
    return improvements(situation, [resplit(situation, Candidate(situation.layout, ()))])
