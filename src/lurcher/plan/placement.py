"""Node swap, GREYHOUND's S3: a slow link should carry little, so nodes exchange their roles until it carries activations or nothing.

Gradients between replicas are gigabytes, activations between stages megabytes. Pairing the largest volume with the fastest
link minimises the slowest transfer (rearrangement); which exchange does that here, the price tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lurcher.layout import Layout
from lurcher.model.rates import LinkRate, Rates
from lurcher.plan.exchange import climb, swapped
from lurcher.plan.nodes import ranks_by_node, representatives
from lurcher.plan.situation import Candidate, Situation, improvements
from lurcher.records import Action, Plan

MOST_NAMED = 8
"""So many exchanges are named; more are counted."""


def propose_swap(situation: Situation) -> tuple[Plan, ...]:
    """Nodes at slow links (and ranks, where a link is between two ranks) exchanged with others."""
    slow = slow_links(situation.rates)
    if not situation.answers("swap") or not slow:
        return ()
    found = climb(situation, situation.layout, lambda layout: node_exchanges(layout, situation.rates, slow), pairs=True)
    words = swap_words(situation, found)
    return improvements(situation, [Candidate(found, (Action("swap", words),) if words else ())])


def slow_links(rates: Rates) -> tuple[LinkRate, ...]:
    """The links that are slow, in order."""
    return tuple(sorted(link for link in rates.links if link.slowdown > 1.0))


def swap_words(situation: Situation, after: Layout) -> str:
    """Which nodes or ranks took whose place; empty where nothing moved. A node is named where all its ranks moved alike."""
    rates = situation.rates
    moved: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for (_, _, old), (_, _, new) in zip(situation.layout.stages(), after.stages(), strict=True):
        for was, now in zip(old.ranks, new.ranks, strict=False):
            if was != now:
                moved.setdefault((rates.node(was), rates.node(now)), []).append((was, now))
    by_node = ranks_by_node(situation.layout, rates)
    texts = [
        f"node {here} takes the place of node {there}"
        if here != there and len(pairs) == len(by_node[there])
        else f"rank{'s' * (len(pairs) > 1)} {_list(now for _, now in pairs)} for {_list(was for was, _ in pairs)}"
        for (there, here), pairs in sorted(moved.items())
    ]
    return "; ".join(texts) if len(texts) <= MOST_NAMED else f"{sum(map(len, moved.values()))} ranks change places"


def node_exchanges(layout: Layout, rates: Rates, slow: tuple[LinkRate, ...]) -> Iterator[Layout]:
    """Every touched node with one of each sort, if both have as many ranks; every touched rank with the others of its node; at last parts of
    two nodes with a slow link between them, so that it carries activations where it carried gradients."""
    by_node = ranks_by_node(layout, rates)
    ends = sorted({end for link in slow for end in (link.a, link.b) if end >= 0 and link.kind == "node"})
    touched_ranks = sorted({end for link in slow for end in (link.a, link.b) if end >= 0 and link.kind == "rank"})
    touched = [node for node in sorted({*ends, *(rates.node(rank) for rank in touched_ranks)}) if node in by_node]
    others = list(representatives(layout, rates, touched))
    for node in touched:
        for other in others:
            if other != node and len(by_node[other]) == len(by_node[node]):
                yield swapped(layout, by_node[node], by_node[other])
    for rank in touched_ranks:
        for mate in by_node.get(rates.node(rank), ()):
            if mate != rank and rank in by_node[rates.node(rank)]:
                yield swapped(layout, [rank], [mate])
    for link in slow:
        if link.kind == "node" and link.b not in {link.a, -1}:
            yield from _part_exchanges(layout, rates, link)


def _part_exchanges(layout: Layout, rates: Rates, link: LinkRate) -> Iterator[Layout]:
    """Whatever a stage has on the one node with whatever another stage has on the other, if both are of one size: tensor groups stay together."""
    parts: dict[int, list[list[int]]] = {link.a: [], link.b: []}
    for _, _, stage in layout.stages():
        for node in parts:
            mine = [rank for rank in stage.ranks if rates.node(rank) == node]
            parts[node] += [mine] if mine else []
    for here in parts[link.a]:
        for there in parts[link.b]:
            if len(here) == len(there):
                yield swapped(layout, here, there)


def _list(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))
