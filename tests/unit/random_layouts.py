"""Random layouts, uneven in all that a layout may be uneven in, with routes and with empty stages."""

from __future__ import annotations

import itertools
import random

from lurcher.layout import LayerRange, Layout, Replica, Route, Stage


def cuts_of(rng: random.Random, num_layers: int, num_parts: int) -> list[LayerRange]:
    """Contiguous parts of one layer or more."""
    cuts = [0, *sorted(rng.sample(range(1, num_layers), num_parts - 1)), num_layers]
    return [LayerRange(a, b) for a, b in itertools.pairwise(cuts)]


def random_layout(rng: random.Random, *, routes: bool = False, num_chunks: int = 1, most_microbatches: int = 5) -> Layout:
    """Replicas of different cuts, degrees, shares and micro-batches; with `routes`, some micro-batches run elsewhere for some layers."""
    num_layers = rng.randint(3 * num_chunks, 8 * num_chunks)
    free = iter(rng.sample(range(64), 64))
    replicas = []
    num_stages = rng.randint(1, 3)
    for d in range(rng.randint(2 if routes else 1, 3)):
        stages = rng.randint(1, 3) if num_chunks == 1 else num_stages
        chunks = cuts_of(rng, num_layers, stages * num_chunks)
        made = []
        for s in range(stages):
            tp = rng.randint(1, 3)
            shares = tuple(rng.randint(1, 3) for _ in range(tp))
            made.append(Stage(tuple(next(free) for _ in range(tp)), shares, tuple(chunks[s::stages])))
        replicas.append(Replica(tuple(made), rng.randint(1 if routes or d == 0 else 0, most_microbatches)))
    num = sum(r.microbatches for r in replicas)
    if not routes:
        return Layout(num_layers, num, tuple(replicas))
    home = [d for d, r in enumerate(replicas) for _ in range(r.microbatches)]
    whole = rng.random() < 0.3
    found = []
    for m, d in enumerate(home):
        taken: list[LayerRange] = []
        if whole and d == 0:
            for chunk in replicas[0].stages[-1].chunks:
                found += _cover(rng, replicas, m, chunk)
                taken.append(chunk)
        if rng.random() < 0.5:
            target = rng.choice([e for e in range(len(replicas)) if e != d and not (whole and e == 0)] or [d])
            s = rng.randrange(len(replicas[target].stages))
            chunk = rng.choice(replicas[target].stages[s].chunks)
            first = rng.randrange(chunk.first, chunk.end)
            part = LayerRange(first, rng.randint(first + 1, chunk.end))
            if target != d and not any(t.first < part.end and part.first < t.end for t in taken):
                found.append(Route(m, part, target, s))
    if whole:
        last = replicas[0].stages[-1]
        replicas[0] = Replica((*replicas[0].stages[:-1], Stage((), (), last.chunks)), replicas[0].microbatches)
    return Layout(num_layers, num, tuple(replicas), (), tuple(found))


def _cover(rng: random.Random, replicas: list[Replica], microbatch: int, wanted: LayerRange) -> list[Route]:
    """Routes of all of `wanted` to another replica's stages."""
    target = rng.randrange(1, len(replicas))
    found = []
    for s, stage in enumerate(replicas[target].stages):
        for chunk in stage.chunks:
            first, end = max(chunk.first, wanted.first), min(chunk.end, wanted.end)
            if first < end:
                found.append(Route(microbatch, LayerRange(first, end), target, s))
    return found
