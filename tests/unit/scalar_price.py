"""What the planner's cost model should say, one stage, pair and layer at a time, in plain loops; the walk is the event-driven one."""

from __future__ import annotations

from event_walk import simulate, split_word

from lurcher.layout import Layout
from lurcher.model.rates import Rates
from lurcher.model.schedule import SPLIT_BACKWARD, schedule_text


def slowdown_of_link(rates: Rates, a: int, b: int) -> float:
    found = 1.0
    for link in rates.links:
        at, to = (a, b) if link.kind == "rank" else (rates.node(a), rates.node(b))
        if {link.a, link.b} == {at, to} or (link.b == -1 and link.a in {at, to} and (at != to or link.kind == "rank")):
            found = max(found, link.slowdown)
    return found


def byte_s(rates: Rates, a: int, b: int) -> float:
    if a == b:
        return 0.0
    rate = rates.node_bytes_per_s if rates.node(a) == rates.node(b) else rates.link_bytes_per_s
    return slowdown_of_link(rates, a, b) / rate if rate else 0.0


def between(rates: Rates, senders: tuple[int, ...], receivers: tuple[int, ...]) -> float:
    """Slowest of the pairs of two groups of ranks, the smaller one's members taken in turn."""
    most = max(len(senders), len(receivers))
    return max(byte_s(rates, senders[j % len(senders)], receivers[j % len(receivers)]) for j in range(most))


def ends(rates: Rates, layout: Layout, first: int, end: int) -> float:
    return end - first + (rates.embed_layers if first == 0 else 0) + (rates.head_layers if end == layout.num_layers else 0)


def chunk_s(rates: Rates, layout: Layout, d: int, s: int, first: int, end: int, kind: str, schedule: str) -> float:
    """One action of layers first .. end - 1 on a stage."""
    stage = layout.replicas[d].stages[s]
    layers, k = ends(rates, layout, first, end), len(stage.ranks)
    layer_s = {"F": rates.forward_s, "B": rates.backward_s + rates.weight_s, "W": 0.0}[kind]
    if schedule in SPLIT_BACKWARD and kind != "F":
        layer_s = (rates.weight_s if kind == "W" else rates.backward_s) if rates.weight_s else rates.backward_s / 2
    slowest = max(rates.rank_slowdown(r) * share / sum(stage.shares) for r, share in zip(stage.ranks, stage.shares, strict=True))
    ring = [byte_s(rates, stage.ranks[j], stage.ranks[(j + 1) % k]) for j in range(k)]
    together = rates.tp_bytes * 2 * (k - 1) / k * max(ring) if kind != "W" else 0.0
    return rates.launch_s + layers * (layer_s * slowest / rates.efficiency(k) + together)


def paths_of(layout: Layout) -> dict[int, list[tuple[int, int, int, int]]]:
    """Per micro-batch its pieces (replica, stage, first, end): layer by layer, cut where the chunk or the executor changes."""
    found = {}
    for m in range(layout.num_microbatches):
        pieces: list[tuple[int, int, int, int]] = []
        before = None
        for layer in range(layout.num_layers):
            d, s = layout.executor(m, layer)
            route = next((r for r in layout.routes if r.microbatch == m and layer in r.chunk), None)
            chunk = next(i for i, c in enumerate(layout.replicas[d].stages[s].chunks) if layer in c)
            piece = (d, s, chunk, route)
            if piece == before:
                pieces[-1] = (*pieces[-1][:3], layer + 1)
            else:
                pieces.append((d, s, layer, layer + 1))
            before = piece
        found[m] = pieces
    return found


def replica_ends(layout: Layout, rates: Rates, schedule: str, routed: dict[tuple[int, int], str]) -> tuple[list[float], list[float]]:
    """When each replica's last action ends, by simulating all of them together, and the most (micro-batch, layer) held by each stage."""
    sites = [(d, s) for d, s, _ in layout.stages()]
    pieces = paths_of(layout)
    paths: dict[int, list[tuple[tuple[int, int], int]]] = {}
    where: dict[tuple[tuple[int, int], int, int], tuple[int, int]] = {}
    for m, path in pieces.items():
        paths[m] = []
        for d, s, first, end in path:
            number = sum(site == (d, s) for site, _ in paths[m])
            paths[m].append(((d, s), number))
            where[(d, s), m, number] = first, end
    texts: dict[tuple[int, int], str] = {}
    for d, replica in enumerate(layout.replicas):
        home = layout.microbatches_of(d)
        own = schedule_text(schedule, len(replica.stages), replica.microbatches, max(len(stage.chunks) for stage in replica.stages))
        for s, text in enumerate(own):
            words = [split_word(word) for word in text.split()]
            texts[d, s] = routed.get((d, s), " ".join(f"{chunk or ''}{kind}{home[m]}" for kind, m, chunk in words))
    if routed:
        assert {site for site in sites if site not in routed} <= {site for site in sites if texts[site] == "" or site not in routed}

    def seconds(site: object, word: str) -> float:
        kind, m, number = split_word(word)
        return chunk_s(rates, layout, *site, *where[site, m, number], kind, schedule)  # type: ignore[misc,index]

    def hop(m: int, k: int) -> float:
        (d, s, *_), (e, t, *_) = pieces[m][k : k + 2]
        if (d, s) == (e, t):
            return 0.0
        return rates.hop_s + rates.hop_bytes * between(rates, layout.replicas[d].stages[s].ranks, layout.replicas[e].stages[t].ranks)

    truth = simulate(texts, paths, seconds, hop)
    assert len(truth) == sum(len(text.split()) for text in texts.values()), "the texts cannot run"
    last = [max([end_s for (site, _), end_s in truth.items() if site[0] == d], default=0.0) for d in range(len(layout.replicas))]  # type: ignore[index]
    held = []
    for site in sites:
        now = peak = 0.0
        for kind, m, number in (split_word(word) for word in texts[site].split()):
            layers = ends(rates, layout, *where[site, m, number])
            now += layers if kind == "F" else -layers if kind == ("W" if schedule in SPLIT_BACKWARD else "B") else 0.0
            peak = max(peak, now)
        held.append(peak)
    return last, held


def sync_s(layout: Layout, rates: Rates) -> float:
    """Every layer's ring over the replicas that hold it, one after the other on each stage; the slowest stage."""
    spent: dict[tuple[int, int], float] = {}
    for layer in range(layout.num_layers):
        holders = [(d, layout.stage_of_layer(d, layer)) for d in range(len(layout.replicas))]
        holders = [(d, s) for d, s in holders if layout.replicas[d].stages[s].ranks]
        if len(holders) < 2:
            continue
        stages = [layout.replicas[d].stages[s] for d, s in holders]
        ring = max(between(rates, a.ranks, b.ranks) for a, b in zip(stages, [*stages[1:], stages[0]], strict=True))
        for place, stage in zip(holders, stages, strict=True):
            chunk = next(c for c in stage.chunks if layer in c)
            layers = ends(rates, layout, chunk.first, chunk.end) / len(chunk)
            part = max(stage.shares) / sum(stage.shares)
            spent[place] = spent.get(place, 0.0) + layers * rates.sync_bytes_per_layer * part * 2 * (len(holders) - 1) / len(holders) * ring
    return max(spent.values(), default=0.0)


def optimizer_s(layout: Layout, rates: Rates) -> float:
    found = 0.0
    for _, _, stage in layout.stages():
        layers = sum(ends(rates, layout, c.first, c.end) for c in stage.chunks)
        for rank, share in zip(stage.ranks, stage.shares, strict=True):
            slow = rates.rank_slowdown(rank) / rates.efficiency(len(stage.ranks))
            found = max(found, rates.optimizer_layer_s * layers * slow * share / sum(stage.shares))
    return found
