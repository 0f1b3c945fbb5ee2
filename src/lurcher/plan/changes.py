"""What a new layout changes, as actions in words, where everything may have changed at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Literal

from lurcher.layout import Layout, Stage
from lurcher.plan.resplit import split_action
from lurcher.plan.words import replica_words
from lurcher.records import Action

MOST_NAMED = 4
"""So many changes of a kind are named; more are counted."""
At = tuple[int, int]


def change_actions(before: Layout, after: Layout, dead: Sequence[int] = (), *, off_links: bool = False) -> tuple[Action, ...]:
    """The actions that lead from one layout to the other: groups, places, layers, replicas, split, in this order.

    Groups change places to stand together, or (`off_links`) to keep off slow links.
    """
    found = [
        *_groups(before, after, dead),
        *_places(before, after, "swap" if off_links else "consolidate"),
        *_replicas(before, after),
        *_layers(before, after),
    ]
    if len(before.replicas) == len(after.replicas):
        found += split_action(before.split, after.split)
    else:
        found.append(Action("split", f"share {after.num_microbatches} micro-batches out over {len(after.replicas)} replicas: {_range(after.split)}"))
    return tuple(found)


def _groups(before: Layout, after: Layout, dead: Sequence[int]) -> list[Action]:
    """Stages whose ranks or shares are not those of any present stage."""
    known = {(stage.ranks, stage.shares) for _, _, stage in before.stages()}
    changed = [(d, s, stage) for d, s, stage in after.stages() if stage.ranks and (stage.ranks, stage.shares) not in known]
    if not changed:
        return []
    own: dict[int, Stage] = {}
    for _, _, stage in before.stages():
        own |= dict.fromkeys(stage.ranks, stage)
    if len(changed) > MOST_NAMED:
        gone = {r for _, _, stage in changed for rank in stage.ranks if rank in own for r in own[rank].ranks} - _at_work(after)
        return [Action("tensor", f"{len(changed)} tensor groups share their layers anew, {len(gone)} of their ranks leave them")]
    return [Action("tensor", _group_words(d, s, stage, own.get(stage.ranks[0]), dead)) for d, s, stage in changed]


def _group_words(d: int, s: int, stage: Stage, old: Stage | None, dead: Sequence[int]) -> str:
    where = f"the group of replica {d} stage {s}"
    gone = [rank for rank in old.ranks if rank not in stage.ranks] if old else []
    words = []
    if gone:
        names = ", ".join(f"{rank} (dead)" if rank in dead else str(rank) for rank in gone)
        words.append(f"goes on without rank{'s' * (len(gone) > 1)} {names}")
    if len(set(stage.shares)) > 1:
        words.append(f"shares its layers {'/'.join(map(str, stage.shares))} over ranks {', '.join(map(str, stage.ranks))}")
    return f"{where} {' and '.join(words) or 'is made of ranks ' + ', '.join(map(str, stage.ranks))}"


def _places(before: Layout, after: Layout, kind: Literal["swap", "consolidate"]) -> list[Action]:
    """Groups that stand somewhere else; they are known by the place of their first rank."""
    if len(before.replicas) != len(after.replicas):
        return []
    home: dict[int, At] = {}
    for d, s, stage in before.stages():
        home |= dict.fromkeys(stage.ranks, (d, s))
    moved = [(home[stage.ranks[0]], (d, s)) for d, s, stage in after.stages() if stage.ranks and stage.ranks[0] in home]
    moved = [(was, now) for was, now in moved if was != now]
    if not moved:
        return []
    if len(moved) > MOST_NAMED:
        return [Action(kind, f"{len(moved)} stages get the ranks of others")]
    return [Action(kind, "; ".join(f"the group of {_at(was)} goes to {_at(now)}" for was, now in moved))]


def _replicas(before: Layout, after: Layout) -> list[Action]:
    lost, waiting = len(before.replicas) - len(after.replicas), sorted(set(after.standby) - set(before.standby))
    if lost > 0:
        return [Action("standby", f"{lost} replica{'s' * (lost > 1)} given up; {len(waiting)} ranks stand by")]
    joined = _at_work(after) - _at_work(before)
    return [Action("standby", f"{len(joined)} ranks that stood by go to work")] if joined else []


def _layers(before: Layout, after: Layout) -> list[Action]:
    if len(before.replicas) != len(after.replicas):
        return []
    old, new = ([_sizes(replica.stages) for replica in layout.replicas] for layout in (before, after))
    changed = [d for d in range(len(new)) if old[d] != new[d]]
    if not changed:
        return []
    if len(changed) > MOST_NAMED and len({(old[d], new[d]) for d in changed}) > 1:
        return [Action("relayer", f"{replica_words(changed)} cut their layers anew")]
    kinds = dict.fromkeys((old[d], new[d]) for d in changed)
    texts = []
    for was, now in kinds:
        members = [d for d in changed if (old[d], new[d]) == (was, now)]
        texts.append(f"layers of {replica_words(members)}: {'/'.join(map(str, was))} -> {'/'.join(map(str, now))}")
    return [Action("relayer", "; ".join(texts))]


def _sizes(stages: Sequence[Stage]) -> tuple[int, ...]:
    return tuple(sum(chunk.end - chunk.first for chunk in stage.chunks) for stage in stages)


def _at_work(layout: Layout) -> set[int]:
    return set(chain.from_iterable(stage.ranks for _, _, stage in layout.stages()))


def _at(place: At) -> str:
    return f"replica {place[0]} stage {place[1]}"


def _range(split: Sequence[int]) -> str:
    return str(split[0]) if min(split) == max(split) else f"{min(split)} to {max(split)} each"
