"""How many layers each stage of a pipeline should hold when its stages differ in speed: exact for the pipeline's closed form.

ResiHP (its PP scheduler, "layer repartition") spreads what a slow stage gives away evenly, over all replicas alike, and
names no formula: (4, 4, 4) -> (5, 2, 5). Here every replica is cut for itself.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import combinations
from math import comb

import numpy as np

from lurcher.layout import Layout, Replica
from lurcher.model.order import Ints
from lurcher.model.stage_table import Floats
from lurcher.plan.cut_times import CutTimes, cut_times
from lurcher.plan.edit import with_layers, with_replicas
from lurcher.plan.layer_choice import layer_choices
from lurcher.plan.situation import LEAST_GAIN, Candidate, Situation, improvements
from lurcher.plan.words import replica_words
from lurcher.records import Action, Plan

MOST_CUTS = 512
"""Up to so many cuts of a pipeline are all walked: a few milliseconds."""
STARTS = 8
"""Cuts of the closed form that the walk looks at; the two differ by a bubble that hides part of a slow stage."""
GIVERS = 4
"""Layers are taken from so many of the longest stages, so that deep pipelines stay cheap to plan."""


def best_cut(times: CutTimes, num_layers: int, present: Sequence[int]) -> tuple[int, ...]:
    """The layers per stage that make this pipeline fastest by the walk; the present ones where nothing is faster.

    Exact where there are at most `MOST_CUTS`: then all are walked. Otherwise starts from the present cut and the `STARTS`
    best of `layer_choices`, and moves single layers between two stages as long as that helps.
    """
    order = times.order()
    least = times.num_chunks
    if least == 1 and comb(num_layers - 1, len(present) - 1) <= MOST_CUTS:
        cuts = np.array([present, *all_cuts(num_layers, times.caps)], dtype=np.intp)
        times_s = times.seconds(order, cuts)
        return tuple(int(n) for n in cuts[int(np.argmax(times_s <= times_s.min() * (1 + LEAST_GAIN)))])
    layer_s, fixed_s = times.linear_s()
    starts = layer_choices(layer_s, fixed_s, times.caps, num_layers, times.microbatches, present=present, count=STARTS)
    tried = np.array([present, *(cut for cut in starts if min(cut) >= least)], dtype=np.intp)
    best, best_s = tried[0], np.inf
    while len(tried):
        times_s = times.seconds(order, tried)
        i = int(np.argmin(times_s))
        if not times_s[i] < best_s * (1 - LEAST_GAIN):
            break
        best, best_s = tried[i], float(times_s[i])
        tried = _neighbours(best, times.caps, least, fixed_s + layer_s * best, layer_s)
    return tuple(int(n) for n in best)


def all_cuts(num_layers: int, caps: Sequence[int]) -> list[tuple[int, ...]]:
    """Every cut of `num_layers` layers over the stages with 1 to `caps[s]` layers each, in lexicographic order."""
    borders = combinations(range(1, num_layers), len(caps) - 1)
    sizes = (tuple(b - a for a, b in zip((0, *inner), (*inner, num_layers), strict=True)) for inner in borders)
    return [cut for cut in sizes if all(n <= cap for n, cap in zip(cut, caps, strict=True))]


def relayered(situation: Situation, layout: Layout, only: Container[int] | None = None) -> Candidate:
    """The layout with the best cut of every replica, or of `only` some; those that cannot run stay as they are. No action where nothing changes."""
    cuts: dict[tuple[object, ...], tuple[int, ...]] = {}
    replicas: list[Replica] = []
    changed: dict[str, list[int]] = {}
    for d, (replica, times) in enumerate(zip(layout.replicas, cut_times(layout, situation.rates, situation.schedule), strict=True)):
        sizes = tuple(stage.num_layers for stage in replica.stages)
        if not np.isfinite(times.stretch).all() or not replica.microbatches or (only is not None and d not in only):
            replicas.append(replica)
            continue
        key = (sizes, *times.key)
        if key not in cuts:
            cuts[key] = best_cut(times, layout.num_layers, sizes)
        replicas.append(replica if cuts[key] == sizes else with_layers(replica, cuts[key]))
        if cuts[key] != sizes:
            changed.setdefault(f"layers {_words(sizes)} -> {_words(cuts[key])}", []).append(d)
    actions = tuple(Action("relayer", f"{replica_words(replicas)}: {words}") for words, replicas in changed.items())
    return Candidate(with_replicas(layout, replicas), actions)


def propose_layers(situation: Situation) -> tuple[Plan, ...]:
    """Every replica cut for itself. None while micro-batches are routed: routes name layer ranges."""
    if not situation.answers("relayer") or situation.layout.routes:
        return ()
    return improvements(situation, [relayered(situation, situation.layout)])


def _neighbours(sizes: Ints, caps: Sequence[int], least: int, ends_s: Floats, layer_s: Floats) -> Ints:
    """Cuts with one layer moved: from the stages that take longest, in all or per layer, to every other."""
    givers = dict.fromkeys([*np.argsort(-ends_s, kind="stable")[:GIVERS].tolist(), *np.argsort(-layer_s, kind="stable")[:GIVERS].tolist()])
    found = []
    for giver in givers:
        for taker in range(len(sizes)):
            if taker != giver and sizes[giver] > least and sizes[taker] < caps[taker]:
                cut = sizes.copy()
                cut[giver] -= 1
                cut[taker] += 1
                found.append(cut)
    return np.array(found, dtype=np.intp).reshape(len(found), len(sizes))


def _words(sizes: Sequence[int]) -> str:
    return "/".join(map(str, sizes))
