"""The order in which a replay walks the graph: what meets in one transfer is one node, and each end is dropped after its last use."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import msgspec
import numpy as np

from lurcher.errors import UserError
from lurcher.ingest.op_trace import TraceOp
from lurcher.localize.whatif_graph import Graph


class Node(msgspec.Struct, frozen=True):
    """Operations that end together, but for their own times: they are ready when all of `before` has ended. `last_use` may be dropped then."""

    before: tuple[int, ...]
    members: tuple[int, ...]
    synced: bool
    last_use: tuple[int, ...]


class Order(msgspec.Struct, frozen=True, eq=False):
    """The nodes so that each comes after what it waits for, and the operations whose ends are the step's end."""

    nodes: tuple[Node, ...]
    final: frozenset[int]


def walk_order(graph: Graph, never_negative: np.ndarray) -> Order:
    """The order of a replay, nearly as things happened, so that few ends are needed at a time.

    `never_negative`, (O,) bool: operations that take no negative time in any replica, step and scenario. A wait is left
    out where another one implies it; small negative transfer times, an effect of clocks, would make that inexact.
    Raises UserError if the operations wait for each other in a circle.
    """
    members, node_of = _nodes(graph)
    waits = [_waits(graph, ops, never_negative) for ops in members]
    order = _sorted(graph, members, node_of, waits)
    last_user = {}
    for place, node in enumerate(order):
        for op in waits[node]:
            last_user[op] = place
    dropped: list[list[int]] = [[] for _ in order]
    for op, place in last_user.items():
        dropped[place].append(op)
    synced = graph.synced()
    nodes = tuple(Node(waits[node], members[node], bool(synced[members[node][0]]), tuple(dropped[place])) for place, node in enumerate(order))
    ends = np.flatnonzero(graph.table.op == TraceOp.OPTIMIZER).tolist()
    return Order(nodes, frozenset(ends or set(range(len(graph.table))) - last_user.keys()))


def _nodes(graph: Graph) -> tuple[list[tuple[int, ...]], list[int]]:
    """The members of each node, and the node of each operation."""
    grouped = graph.grouped()
    members = [*graph.groups, *((op,) for op in np.flatnonzero(~grouped).tolist())]
    node_of = [0] * len(graph.before)
    for node, ops in enumerate(members):
        for op in ops:
            node_of[op] = node
    return members, node_of


def _waits(graph: Graph, ops: tuple[int, ...], never_negative: np.ndarray) -> tuple[int, ...]:
    found = {earlier for op in ops for earlier in graph.before[op]}
    implied = {earlier for via in found if never_negative[via] for earlier in graph.before[via]}
    return tuple(sorted(found - implied))


def _sorted(graph: Graph, members: list[tuple[int, ...]], node_of: list[int], waits: list[tuple[int, ...]]) -> list[int]:
    missing = [0] * len(members)
    users: list[list[int]] = [[] for _ in members]
    for node, ops in enumerate(waits):
        for earlier in {node_of[op] for op in ops}:
            missing[node] += 1
            users[earlier].append(node)
    start = graph.table.start_s
    keys = [max(float(start[op]) for op in ops) for ops in members]
    ready = [(keys[node], node) for node, count in enumerate(missing) if not count]
    heapify(ready)
    order = []
    while ready:
        _, node = heappop(ready)
        order.append(node)
        for user in users[node]:
            missing[user] -= 1
            if not missing[user]:
                heappush(ready, (keys[user], user))
    if len(order) < len(members):
        stuck = next(node for node, count in enumerate(missing) if count)
        raise UserError(
            f"{graph.table.path}: operations wait for each other in a circle, among them {graph.table.words(members[stuck][0])};"
            " the start times of replica 0's first step contradict the order of a pipeline"
        )
    return order
