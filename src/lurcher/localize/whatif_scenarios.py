"""Scenarios of a replay: which operations keep their real time, and which get the ideal one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from lurcher.localize.whatif_order import Order
from lurcher.localize.whatif_replay import replay
from lurcher.localize.whatif_table import Array, Ints
from lurcher.localize.whatif_times import Floats, OpTimes

Mask = npt.NDArray[np.bool_]

BATCH = 1 << 14
"""Numbers in one array of a replay: enough to hide Python's cost per operation, few enough to stay in a core's cache."""


class Scenario(msgspec.Struct, frozen=True, eq=False):
    """The operations in `ops` (O,) of the workers in `cells` (P, D) are real and all else is ideal; without `keep`, the other way round.

    None stands for all operations, or all workers.
    """

    ops: Mask | None = None
    cells: Mask | None = None
    keep: bool = True


def run(order: Order, times: OpTimes, stage: Ints, scenarios: Sequence[Scenario]) -> Floats:
    """Seconds of the step in each scenario, (S, T). `stage` (O,) is where each operation runs."""
    _, num_dp, num_steps = times.real_s.shape
    size = max(1, BATCH // (num_dp * num_steps))
    parts = [_run_some(order, times, stage, scenarios[i : i + size]) for i in range(0, len(scenarios), size)]
    return np.concatenate(parts) if parts else np.empty((0, num_steps))


def _run_some(order: Order, times: OpTimes, stage: Ints, some: Sequence[Scenario]) -> Floats:
    num_ops, num_dp, num_steps = times.real_s.shape
    num_stages = int(stage.max()) + 1
    ops = np.array([np.ones(num_ops, np.bool_) if one.ops is None else one.ops for one in some])
    cells = np.array([np.ones((num_stages, num_dp), np.bool_) if one.cells is None else one.cells for one in some])
    keep = np.array([one.keep for one in some])[:, None]
    rows = np.empty((2, num_dp, num_steps))  # an operation's ideal and real times, from which every scenario takes its own
    picks: dict[bytes, Ints] = {}
    places = stage.tolist()

    def cost_of(op: int) -> Array:
        inside = ops[:, op]
        key = inside.tobytes() + bytes((places[op] & 255, places[op] >> 8))
        if key not in picks:
            real = (inside[:, None] & cells[:, places[op]]) == keep
            picks[key] = np.where(real, num_dp, 0) + np.arange(num_dp)
        rows[0], rows[1] = times.ideal_s[op], times.real_s[op]
        return rows.reshape(2 * num_dp, num_steps).take(picks[key], axis=0)

    return replay(order, cost_of, (len(some), num_dp, num_steps))


def ideal_step(order: Order, times: OpTimes) -> float:
    """Seconds of the step in which every operation is ideal; it is the same in all replicas and steps."""
    return float(replay(order, lambda op: times.ideal_s[op : op + 1, None, None], (1, 1, 1))[0, 0])


def run_alone(order: Order, times: OpTimes, ops: Sequence[Mask]) -> Floats:
    """Seconds of the step if only these operations of ONE replica are real, for every replica: (S, D, T) for S sets of operations.

    All other replicas are ideal and therefore alike, so that two members stand for the whole group: the replica in question,
    and one of the others. It costs two replicas' work per set and replica instead of all, and is exact.
    """
    num_ops, num_dp, num_steps = times.real_s.shape
    lanes = num_dp * num_steps
    members = min(2, num_dp)
    size = max(1, BATCH // (members * lanes))
    real = times.real_s.reshape(num_ops, 1, lanes)
    parts = [_run_alone_some(order, times, real, np.array(ops[i : i + size]), members) for i in range(0, len(ops), size)]
    return np.concatenate(parts).reshape(len(ops), num_dp, num_steps)


def _run_alone_some(order: Order, times: OpTimes, real: Array, ops: Mask, members: int) -> Floats:
    lanes = real.shape[2]

    def cost_of(op: int) -> Array:
        if not ops[:, op].any():
            return times.ideal_s[op : op + 1, None, None]
        found = np.full((len(ops), members, lanes), times.ideal_s[op])
        found[ops[:, op], 0] = real[op]
        return found

    return replay(order, cost_of, (len(ops), members, lanes))
