"""The measures of a what-if analysis: how much slower a step is than if all were alike, and how much of that is whose.

Definitions of arXiv 2505.05713: S is its equation 1, S_t equation 2, S_w equation 4, M_W equation 5, M_S section 5.2. Its artifact
takes the smaller of the replica's and the stage's figure for a worker's; here each worker is replayed by itself as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from lurcher.ingest.op_trace import OP_NAMES, TraceOp
from lurcher.localize.whatif_graph import Graph
from lurcher.localize.whatif_order import Order
from lurcher.localize.whatif_scenarios import Mask, Scenario, ideal_step, run, run_alone
from lurcher.localize.whatif_table import Array, DenseTrace, Ints
from lurcher.localize.whatif_times import Floats, OpTimes

WORST_PERCENT = 3
"""Workers that M_W makes ideal, in percent, rounded up (equation 5)."""
MOST_ALONE = 128
"""So many workers are made ideal one by one; of more, those with the largest S_w."""
_TYPE_NAMES = {
    TraceOp.FORWARD_SEND: "forward-pp-comm",
    TraceOp.FORWARD_RECV: "forward-pp-comm",
    TraceOp.BACKWARD_SEND: "backward-pp-comm",
    TraceOp.BACKWARD_RECV: "backward-pp-comm",
}


class Removal(msgspec.Struct, frozen=True):
    """What making some operations ideal does, in seconds of the mean step: all real but these, none real but these, all real, none real."""

    removed_s: float
    added_s: float
    no_delay_s: float
    ideal_s: float

    @property
    def share(self) -> float:
        """The part of the slowdown that is gone without them (M_W and M_S); 0 where nothing is slowed down."""
        return _share(self.no_delay_s - self.removed_s, self.no_delay_s - self.ideal_s)

    @property
    def added_share(self) -> float:
        """The part of the slowdown that they cause by themselves."""
        return _share(self.added_s - self.ideal_s, self.no_delay_s - self.ideal_s)


class WhatIf(msgspec.Struct, frozen=True, eq=False):
    """Seconds of the step in every scenario, by step in the last axis (T). `only_*`: these alone are real; `without_*`: these alone are ideal.

    First axes: types in the order of `types`, stages P, replicas D, workers (D, P). `without_worker_s` is NaN for workers
    that were not tried by themselves. `worst` are the workers of M_W as (replica, stage).
    """

    steps: Array
    types: tuple[str, ...]
    measured_s: Floats
    no_delay_s: Floats
    ideal_s: float
    only_type_s: Floats
    only_stage_s: Floats
    only_dp_s: Floats
    only_worker_s: Floats
    without_type_s: Floats
    without_stage_s: Floats
    without_worker_s: Floats
    worst: tuple[tuple[int, int], ...]
    m_w: Removal
    m_s: Removal

    @property
    def slowdown(self) -> float:
        """S: mean step without launch delays over the ideal one."""
        return float(self.no_delay_s.mean() / self.ideal_s)

    @property
    def launch_slowdown(self) -> float:
        """Mean step as measured over that without launch delays."""
        return float(self.measured_s.mean() / self.no_delay_s.mean())

    def ratios(self, seconds: Floats) -> Floats:
        """Slowdown of each scenario: its mean over the steps, over the ideal step."""
        return np.asarray(seconds.mean(axis=-1) / self.ideal_s)


def type_masks(graph: Graph) -> dict[str, Mask]:
    """The operations of each type, (O,); a send and its receive are of one type."""
    names = np.array([_TYPE_NAMES.get(TraceOp(op), OP_NAMES[op]) for op in graph.table.op.tolist()])
    return {str(name): names == name for name in dict.fromkeys(names.tolist())}


def measure(dense: DenseTrace, graph: Graph, order: Order, times: OpTimes) -> WhatIf:
    """All measures of a trace, out of a few passes over its graph."""
    num_dp, stage = times.real_s.shape[1], graph.table.stage
    kinds, stages = type_masks(graph), [stage == s for s in range(graph.table.num_stages)]
    sets, num_kinds = [*kinds.values(), *stages], len(kinds)
    no_delay_s, *only = run(order, times, stage, [Scenario(), *(Scenario(ops) for ops in sets)])
    only_type_s, only_stage_s = np.array(only[:num_kinds]), np.array(only[num_kinds:])
    if num_dp > 1:
        by_dp = run_alone(order, times, [np.ones(len(stage), np.bool_), *stages])
        only_dp_s, only_worker_s = by_dp[0], by_dp[1:].swapaxes(0, 1)
    else:
        only_dp_s, only_worker_s = no_delay_s[None], only_stage_s[None]
    ideal_s = ideal_step(order, times)
    worst = worst_workers(only_dp_s.mean(axis=-1), only_stage_s.mean(axis=-1), dense.ranks)
    tried = _largest(only_worker_s.mean(axis=-1))
    cells = [_cells(dense.ranks.T.shape, workers) for workers in (worst, *([worker] for worker in tried))]
    without = run(order, times, stage, [*(Scenario(ops, keep=False) for ops in sets), *(Scenario(cells=c, keep=False) for c in cells)])
    (added_s,) = run(order, times, stage, [Scenario(cells=cells[0])])
    without_worker_s = np.full_like(only_worker_s, np.nan)
    without_worker_s[tuple(np.array(tried).T)] = without[len(sets) + 1 :]
    mean_s = float(no_delay_s.mean())
    return WhatIf(
        steps=dense.steps,
        types=tuple(kinds),
        measured_s=dense.measured_s,
        no_delay_s=no_delay_s,
        ideal_s=ideal_s,
        only_type_s=only_type_s,
        only_stage_s=only_stage_s,
        only_dp_s=only_dp_s,
        only_worker_s=only_worker_s,
        without_type_s=without[:num_kinds],
        without_stage_s=without[num_kinds : len(sets)],
        without_worker_s=without_worker_s,
        worst=worst,
        m_w=Removal(float(without[len(sets)].mean()), float(added_s.mean()), mean_s, ideal_s),
        m_s=Removal(float(without[len(sets) - 1].mean()), float(only_stage_s[-1].mean()), mean_s, ideal_s),
    )


def worst_workers(dp_s: Floats, stage_s: Floats, ranks: Ints) -> tuple[tuple[int, int], ...]:
    """The workers of M_W, as (replica, stage): those whose replica and stage are both slow, by the smaller of the two, as the artifact picks them.

    dp_s (D,) and stage_s (P,) are seconds with that replica or stage alone real; of equals the lower rank comes first.
    """
    scores = np.minimum(dp_s[:, None], stage_s)
    first = np.lexsort((ranks.ravel(), -scores.ravel()))[: -(-scores.size * WORST_PERCENT // 100)]
    return tuple((int(place // len(stage_s)), int(place % len(stage_s))) for place in first)


def _largest(worker_s: Floats) -> list[tuple[int, int]]:
    """The workers with the largest S_w, at most MOST_ALONE."""
    first = np.argsort(-worker_s.ravel(), kind="stable")[:MOST_ALONE]
    return [(int(place // worker_s.shape[1]), int(place % worker_s.shape[1])) for place in first]


def _cells(shape: tuple[int, ...], workers: Sequence[tuple[int, int]]) -> Mask:
    """(P, D), true for these (replica, stage)."""
    cells = np.zeros(shape, np.bool_)
    for dp, stage in workers:
        cells[stage, dp] = True
    return cells


def _share(part_s: float, whole_s: float) -> float:
    return part_s / whole_s if whole_s > 0 else 0.0
