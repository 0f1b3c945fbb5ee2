"""Layouts with routes and empty stages at random, and what they must lead to, told from `Layout.executor` alone."""

from __future__ import annotations

import random
from typing import NamedTuple

import msgspec

from lurcher.layout import LayerRange, Layout, Route
from lurcher.model.program import joints


class Run(NamedTuple):
    """Layers `first` .. `end - 1` of a micro-batch on a stage, for the `number`-th time there."""

    place: tuple[int, int]
    first: int
    end: int
    number: int


def runs_of(layout: Layout, microbatch: int) -> list[Run]:
    """A micro-batch's way through the layers. A route's ends are ends of a run too."""
    ends = {end for route in layout.routes if route.microbatch == microbatch for end in (route.chunk.first, route.chunk.end)}
    places = [layout.executor(microbatch, layer) for layer in range(layout.num_layers)]
    firsts = [layer for layer in range(layout.num_layers) if layer == 0 or layer in ends or places[layer] != places[layer - 1]]
    found: list[Run] = []
    for first, end in zip(firsts, [*firsts[1:], layout.num_layers], strict=True):
        found.append(Run(places[first], first, end, sum(run.place == places[first] for run in found)))
    return found


def crossings_of(layout: Layout, microbatch: int) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Where a micro-batch goes from one stage to another: the layer behind the border, and the ranks on both sides."""
    runs = runs_of(layout, microbatch)
    found = []
    for before, behind in zip(runs, runs[1:], strict=False):
        if before.place != behind.place:
            left, right = (layout.replicas[d].stages[s].ranks for d, s in (before.place, behind.place))
            found.append((behind.first, left, right))
    return found


def routed(rng: random.Random, layout: Layout, share: float = 0.4) -> Layout:
    """The layout with some parts of some micro-batches elsewhere, and perhaps one stage without ranks, which then stand by."""
    if len(layout.replicas) < 2:
        return layout
    if rng.random() < 0.6:
        layout = emptied(rng, layout)
    routes = list(layout.routes)
    for microbatch in range(layout.num_microbatches):
        if rng.random() < share:
            home = next(d for d in range(len(layout.replicas)) if microbatch in layout.microbatches_of(d))
            first = rng.randrange(layout.num_layers)
            wanted = LayerRange(first, rng.randint(first + 1, layout.num_layers))
            taken = [route.chunk for route in routes if route.microbatch == microbatch]
            routes += [r for r in _away(rng, layout, microbatch, home, wanted) if not any(_overlap(r.chunk, chunk) for chunk in taken)]
    return msgspec.structs.replace(layout, routes=tuple(sorted(routes)))


def shuffled(rng: random.Random, layout: Layout) -> Layout:
    """The layout with any order of work that can be run, good or bad: the next action is drawn from all that have what they need."""
    joined = {d for coupled, _ in joints(layout, "1f1b") if len(coupled.replicas) > 1 for d in coupled.replicas}
    words: dict[tuple[int, int], list[str]] = {(d, s): [] for d, s, _ in layout.stages()}
    ways = [runs_of(layout, m) for m in range(layout.num_microbatches)]
    done = [0] * len(ways)
    while left := [m for m, way in enumerate(ways) if done[m] < 2 * len(way)]:
        m = rng.choice(left)
        forward = done[m] < len(ways[m])
        run = ways[m][done[m] if forward else 2 * len(ways[m]) - 1 - done[m]]
        words[run.place].append(f"{run.number or ''}{'F' if forward else 'B'}{m}")
        done[m] += 1
    return msgspec.structs.replace(layout, order=tuple(" ".join(mine) if d in joined else "" for (d, _), mine in words.items()))


def emptied(rng: random.Random, layout: Layout) -> Layout:
    """One stage loses its ranks, and all its micro-batches are routed."""
    d, s, dead = rng.choice(list(layout.stages()))
    replica = layout.replicas[d]
    empty = msgspec.structs.replace(dead, ranks=(), shares=())
    stages = (*replica.stages[:s], empty, *replica.stages[s + 1 :])
    replicas = (*layout.replicas[:d], msgspec.structs.replace(replica, stages=stages), *layout.replicas[d + 1 :])
    routes = [route for m in layout.microbatches_of(d) for chunk in dead.chunks for route in _away(rng, layout, m, d, chunk)]
    standby = tuple(sorted((*layout.standby, *dead.ranks)))
    return msgspec.structs.replace(layout, replicas=replicas, standby=standby, routes=tuple(sorted(routes)))


def _away(rng: random.Random, layout: Layout, microbatch: int, home: int, wanted: LayerRange) -> list[Route]:
    """Routes of the wanted layers to live stages of other replicas, each layer to one of them."""
    found: list[Route] = []
    layer = wanted.first
    while layer < wanted.end:
        targets = [(d, s, chunk) for d, s, stage in layout.stages() for chunk in stage.chunks if d != home and stage.ranks and layer in chunk]
        if not targets:
            layer += 1
            continue
        d, s, chunk = rng.choice(targets)
        end = rng.randint(layer + 1, min(chunk.end, wanted.end))
        found.append(Route(microbatch, LayerRange(layer, end), d, s))
        layer = end
    return found


def _overlap(a: LayerRange, b: LayerRange) -> bool:
    return a.first < b.end and b.first < a.end
