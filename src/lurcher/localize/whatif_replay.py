"""The replay: when every operation would end with other durations, in all replicas, steps and scenarios at once.

An array has three axes: scenario, member of the replicas' group, lane. What replicas do together waits for the largest
over the second axis. Each end is dropped after its last use, so that memory goes with what is under way and not with the step.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lurcher.localize.whatif_order import Order
from lurcher.localize.whatif_times import Floats

CostOf = Callable[[int], Floats]
"""Seconds of an operation, of a shape that broadcasts to (scenarios, members, lanes)."""


def replay(order: Order, cost_of: CostOf, shape: tuple[int, int, int]) -> Floats:
    """How long the step takes in each scenario and lane, (S, L). Steps begin at 0, and nothing waits for its launch."""
    ends: dict[int, Floats] = {}
    finish = np.zeros((shape[0], 1, shape[2]))
    start = np.zeros((1, 1, 1))
    for node in order.nodes:
        before = node.before
        if not before:
            ready = start
        elif len(before) == 1:
            ready = ends[before[0]]
        else:
            ready = np.maximum(ends[before[0]], ends[before[1]])
            for earlier in before[2:]:
                ready = np.maximum(ready, ends[earlier])
        if node.synced:
            ready = ready.max(axis=1, keepdims=True)
        for op in node.members:
            end = ends[op] = ready + cost_of(op)
            if op in order.final:
                finish = np.maximum(finish, end.max(axis=1, keepdims=True))
        for op in node.last_use:
            del ends[op]
    return np.ascontiguousarray(np.broadcast_to(finish, (shape[0], 1, shape[2]))[:, 0])


def replay_spans(order: Order, cost_of: CostOf, num_ops: int, shape: tuple[int, int]) -> tuple[Floats, Floats]:
    """When each operation's own time begins and ends in one scenario, both (O, members, lanes): a timeline without waiting."""
    begins, ends = np.zeros((num_ops, *shape)), np.zeros((num_ops, *shape))
    for node in order.nodes:
        ready = ends[list(node.before)].max(axis=0) if node.before else np.zeros(shape)
        if node.synced:
            ready = np.broadcast_to(ready.max(axis=0, keepdims=True), shape)
        for op in node.members:
            begins[op] = ready
            ends[op] = ready + cost_of(op)
    return begins, ends
