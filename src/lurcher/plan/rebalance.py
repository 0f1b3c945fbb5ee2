"""The cheapest remedy, GREYHOUND's S2: give a slow replica fewer micro-batches. The present layout is always a candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lurcher.layout import Layout
from lurcher.model.cost import CostModel
from lurcher.plan.bound import bound_s
from lurcher.plan.split import min_max_split
from lurcher.records import Action, Cause, Plan

REBALANCE_CAUSES: frozenset[Cause] = frozenset({"compute", "host"})
"""Causes whose cost goes with the number of micro-batches. A slow link between replicas costs the same after any split."""
MAX_OF_EVEN = 4
"""A replica gets at most so many times the even share; it matters only with more than so many replicas, most of them very slow."""


def propose_split(
    layout: Layout,
    model: CostModel,
    workload: NDArray[Any],
    slowdown: Mapping[int, float],
    healthy_s: float,
    pause_s: float,
    cause: Cause = "compute",
) -> Plan:
    """The best split of the micro-batches for ranks slowed down by `slowdown`, or the present one when nothing beats it.

    `workload` are the WORKLOAD rows of recent iterations; predictions are their mean, so give ten or more where
    micro-batches differ much: a single one may by chance be heavy on one replica. `healthy_s` is the measured healthy
    iteration and `pause_s` the one-off cost of a switch, both in seconds. An empty `slowdown` proposes the way back.
    Splits come from T_i(m) of average micro-batches and are scored by the walk of the real ones. A bound that the
    prediction beats (see `bound_s`) is lowered to it.
    """
    if not model.ready:
        return _keep(layout, healthy_s, healthy_s, f"keep the split {_words(layout.split)}: too few healthy iterations were seen to predict another")
    present_s = _predicted_s(model, layout, workload, slowdown)
    num_replicas = len(layout.replicas)
    cap = min(layout.num_microbatches, MAX_OF_EVEN * -(-layout.num_microbatches // num_replicas))
    times = model.split_times(layout, cap, workload, slowdown)
    longest_s = max(float(table[1]) for table in times)
    floor_s = bound_s(healthy_s, layout, slowdown, longest_s=longest_s, overhead_s=min(max(model.overhead_s, 0.0), healthy_s))
    if cause not in REBALANCE_CAUSES:
        reason = f"keep the split {_words(layout.split)}: the cause is {cause}, and its cost does not go with the number of micro-batches"
        return _keep(layout, present_s, floor_s, reason)
    best, best_s = layout, present_s
    for split in _candidates(times, layout):
        candidate = layout.with_split(split)
        candidate_s = _predicted_s(model, candidate, workload, slowdown)
        if candidate_s < best_s:
            best, best_s = candidate, candidate_s
    floor_s = min(floor_s, best_s)
    if best is layout:
        return _keep(layout, present_s, floor_s, f"keep the split {_words(layout.split)}: no other is predicted below {present_s:.3f} s an iteration")
    moves = _moves(layout.split, best.split)
    reason = (
        f"{moves} ({_words(layout.split)} -> {_words(best.split)}): predicted {best_s:.3f} s instead of {present_s:.3f} s an iteration,"
        f" {present_s / best_s:.2f} times the throughput; the bound is {floor_s:.3f} s"
    )
    return Plan(best, (Action("split", moves),), present_s, best_s, floor_s, pause_s, 0, reason)


def accept(plan: Plan, min_gain: float, remaining_iterations: float) -> tuple[bool, str]:
    """Whether a plan is worth carrying out: a throughput gain of at least `min_gain` that earns the pause back in time."""
    if any(action.kind == "keep" for action in plan.actions):
        return False, plan.reason
    if plan.gain < min_gain:
        return False, f"refused: a predicted gain of {plan.gain:.3f} is below the required {min_gain:.3f}"
    saved_s = (plan.present_s - plan.predicted_s) * remaining_iterations
    if saved_s <= plan.pause_s:
        return False, f"refused: over the {remaining_iterations:.0f} iterations left it saves {saved_s:.2f} s, the switch costs {plan.pause_s:.2f} s"
    earned = f"it saves {saved_s:.2f} s over the {remaining_iterations:.0f} iterations left for a pause of {plan.pause_s:.2f} s"
    return True, f"accepted: {earned}; {plan.reason}"


def _candidates(times: Sequence[NDArray[np.float64]], layout: Layout) -> list[tuple[int, ...]]:
    """Splits to score, the present one not among them.

    The optimal ones nearest to the present and to the even one; and that with one micro-batch more or less moved between
    the two replicas that change most, because micro-batches that differ shift the optimum of average ones a little.
    """
    near = min_max_split(times, layout.num_microbatches, present=layout.split)
    found = [near, min_max_split(times, layout.num_microbatches)]
    change = [after - before for before, after in zip(layout.split, near, strict=True)]
    giver, taker = int(np.argmin(change)), int(np.argmax(change))
    for more in (-1, 1) if giver != taker else ():
        split = list(near)
        split[giver] -= more
        split[taker] += more
        if min(split) >= 1:
            found.append(tuple(split))
    return [split for split in dict.fromkeys(found) if split != layout.split]


def _predicted_s(model: CostModel, layout: Layout, workload: NDArray[Any], slowdown: Mapping[int, float]) -> float:
    """Mean expected seconds over the iterations in the workload."""
    iterations = np.unique(workload["iteration"])
    return float(np.mean([model.expected_s(layout, workload[workload["iteration"] == i], slowdown) for i in iterations]))


def _keep(layout: Layout, present_s: float, floor_s: float, reason: str) -> Plan:
    return Plan(layout, (Action("keep", "keep the present layout"),), present_s, present_s, min(floor_s, present_s), 0.0, 0, reason)


def _moves(before: Sequence[int], after: Sequence[int]) -> str:
    """Which replicas give and which take, in words."""
    giving = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a > b]
    taking = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if b > a]
    count = sum(before[i] - after[i] for i in giving)
    return f"move {count} micro-batch{'es' * (count > 1)} from {_replicas(giving)} to {_replicas(taking)}"


def _replicas(indices: Sequence[int]) -> str:
    return f"replica{'s' * (len(indices) > 1)} {', '.join(map(str, indices))}"


def _words(split: Sequence[int]) -> str:
    """The split itself, or its range where it would fill the line."""
    if len(split) <= 8:
        return "/".join(str(m) for m in split)
    return f"{min(split)} to {max(split)} on {len(split)} replicas"
