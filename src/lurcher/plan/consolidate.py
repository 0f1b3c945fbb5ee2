"""Stragglers into the fewest stages, GREYHOUND's S3b: slow parts that stand together hold back one stage, not several.

GREYHOUND packs stragglers into ceil(stragglers / devices per stage) stages, interior ones first, for the ends hold embedding and
head. Here slow ranks change places inside their node and slow groups between stages, for as long as the price falls with the
best split on top; from the present layout, and from one where the slow groups are gathered in one replica, interior first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from lurcher.layout import Layout
from lurcher.model.price import stage_pace
from lurcher.model.stage_table import stage_table
from lurcher.plan.edit import At, groups_exchanged
from lurcher.plan.exchange import climb, swapped
from lurcher.plan.placement import slow_links, swap_words
from lurcher.plan.resplit import best_splits, split_action
from lurcher.plan.situation import Candidate, Situation, improvements
from lurcher.records import Action, Plan


def propose_consolidation(situation: Situation) -> tuple[Plan, ...]:
    """Slow ranks and groups brought together. None where a stage is empty: its routes name micro-batches."""
    layout = situation.layout
    if not situation.answers("consolidate") or any(not stage.ranks for _, _, stage in layout.stages()):
        return ()

    def finish(layouts: Sequence[Layout]) -> list[Layout]:
        splits = best_splits(situation, layouts) if situation.answers("split") else [one.split for one in layouts]
        return [one if split == one.split else one.with_split(split) for one, split in zip(layouts, splits, strict=True)]

    starts = dict.fromkeys([layout, gathered(situation, layout)])
    found = [climb(situation, start, lambda present: _offers(situation, present), finish) for start in starts]
    return improvements(situation, [Candidate(after, _actions(situation, after)) for after in found])


def gathered(situation: Situation, layout: Layout) -> Layout:
    """The slow groups in the replica that has most of them, interior stages first; the rest of them in the next such replica."""
    slow = _slow_places(situation, layout)
    if len(slow) < 2:
        return layout
    counts = {d: sum(place[0] == d for place in slow) for d in range(len(layout.replicas))}
    targets = [(d, s) for d in sorted(counts, key=lambda d: (-counts[d], d)) for s in _interior_first(len(layout.replicas[d].stages))]
    wanted = targets[: len(slow)]
    leaving = [place for place in slow if place not in wanted]
    for target, place in zip([target for target in wanted if target not in slow], leaving, strict=True):
        layout = groups_exchanged(layout, target, place)
    return layout


def _interior_first(num_stages: int) -> list[int]:
    return sorted(range(num_stages), key=lambda s: (s in {0, num_stages - 1}, s))


def _slow_places(situation: Situation, layout: Layout) -> list[At]:
    """Stages that are slower than the fastest of their size of group, slowest first; then those at the end of a slow link."""
    rates = situation.rates
    table = stage_table(layout, rates)
    pace = stage_pace(table, rates)
    healthy = np.array([pace[table.size == size].min() for size in table.size])
    places = [(d, s) for d, s, _ in layout.stages()]
    slower = pace / healthy
    slow = [places[i] for i in np.argsort(-slower, kind="stable") if slower[i] > 1.0 + 1e-9]
    if situation.answers("swap"):
        ends = {(link.kind, end) for link in slow_links(rates) for end in (link.a, link.b)}
        slow += [
            (d, s)
            for d, s, stage in layout.stages()
            if (d, s) not in slow and any(("node", rates.node(rank)) in ends or ("rank", rank) in ends for rank in stage.ranks)
        ]
    return slow


def _offers(situation: Situation, layout: Layout) -> Iterator[Layout]:
    """Slow ranks exchanged with those of other groups on their node; every slow group with one of each sort, first where another slow one is."""
    yield from _inside_nodes(situation, layout)
    slow = _slow_places(situation, layout)
    slow_in = {d: tuple(place for place in slow if place[0] == d) for d in range(len(layout.replicas))}
    apart: list[tuple[At, At]] = []
    for place in slow:
        seen: set[object] = set()
        for e, t, stage in layout.stages():
            ill = tuple(situation.rates.rank_slowdown(rank) for rank in stage.ranks)
            sort = (t, ill, e == place[0], layout.split[e], tuple((s, layout.replicas[e].stages[s].ranks) for _, s in slow_in[e]))
            if (e, t) == place or sort in seen:
                continue
            seen.add(sort)
            if e == place[0] or slow_in[e]:
                yield groups_exchanged(layout, place, (e, t))
            else:
                apart.append((place, (e, t)))
    for here, there in apart:
        yield groups_exchanged(layout, here, there)


def _inside_nodes(situation: Situation, layout: Layout) -> Iterator[Layout]:
    rates = situation.rates
    home = {rank: (d, s) for d, s, stage in layout.stages() for rank in stage.ranks}
    for rank in sorted(rank for rank in home if rates.rank_slowdown(rank) > 1.0):
        for other, at in home.items():
            if at != home[rank] and rates.node(other) == rates.node(rank) and rates.rank_slowdown(other) != rates.rank_slowdown(rank):
                yield swapped(layout, [rank], [other])


def _actions(situation: Situation, after: Layout) -> tuple[Action, ...]:
    words = swap_words(situation, after)
    if not words:
        return ()
    return (Action("consolidate", f"bring slow parts together: {words}"), *split_action(situation.layout.split, after.split))
