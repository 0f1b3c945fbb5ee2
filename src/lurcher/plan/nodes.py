"""Which nodes a layout uses for what, as far as an exchange of two nodes depends on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lurcher.layout import Layout
from lurcher.model.rates import Rates
from lurcher.plan.edit import At

Role = frozenset[At]
"""The (replica, stage) places of a node's ranks; empty for a node on standby."""


def ranks_by_node(layout: Layout, rates: Rates) -> dict[int, list[int]]:
    """The ranks of every node, working and on standby, in rising order; nodes in rising order."""
    found: dict[int, list[int]] = {}
    for rank in sorted((*layout.ranks, *layout.standby)):
        found.setdefault(rates.node(rank), []).append(rank)
    return dict(sorted(found.items()))


def roles(layout: Layout, rates: Rates) -> dict[int, Role]:
    """What every node that has working ranks does."""
    found: dict[int, set[At]] = {}
    for d, s, stage in layout.stages():
        for rank in stage.ranks:
            found.setdefault(rates.node(rank), set()).add((d, s))
    return {node: frozenset(places) for node, places in found.items()}


def relation(one: Role, other: Role, num_replicas: int) -> tuple[bool, bool]:
    """Whether two nodes exchange gradients (same stage, next in the ring of replicas), and whether activations (next stages of a replica)."""
    gradients = any(s == t and (d - e) % num_replicas in {1, num_replicas - 1} for d, s in one for e, t in other)
    activations = any(d == e and abs(s - t) == 1 for d, s in one for e, t in other)
    return gradients, activations


def representatives(layout: Layout, rates: Rates, touched: Sequence[int]) -> Iterator[int]:
    """One node of each sort, in rising order: same stages, same traffic with the touched nodes, same slow ranks.

    Exchanging a touched node with one or another of a sort changes the price alike (but for rings that close around few replicas).
    """
    does, by_node = roles(layout, rates), ranks_by_node(layout, rates)
    standby = frozenset(layout.standby)
    nothing: Role = frozenset()
    seen: set[object] = set()
    for node, ranks in by_node.items():
        role = does.get(node, nothing)
        slow = tuple((rates.rank_slowdown(rank), rank in standby) for rank in ranks)
        traffic = tuple((t == node, *relation(role, does.get(t, nothing), len(layout.replicas))) for t in touched)
        sort = (tuple(sorted({s for _, s in role})), len({d for d, _ in role}), slow, traffic)
        if sort not in seen:
            seen.add(sort)
            yield node
