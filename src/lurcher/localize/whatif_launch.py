"""Operations that started late although all they wait for was there: the host was busy, or waited for input."""

from __future__ import annotations

import msgspec
import numpy as np

from lurcher.ingest.op_trace import TraceOp
from lurcher.localize.whatif_graph import Graph
from lurcher.localize.whatif_table import DenseTrace
from lurcher.localize.whatif_times import Floats, launch_delays
from lurcher.localize.whatif_workers import beside_others

LEAST_PART = 0.5
"""A worker's host is named if its delay exceeds that of its like by so much of what all delays cost the step."""


class LateHost(msgspec.Struct, frozen=True):
    """A worker whose operations start late: seconds a step, and what its like need (the median of the others)."""

    dp: int
    stage: int
    delay_s: float
    others_s: float


def late_hosts(dense: DenseTrace, graph: Graph, cost_s: float) -> tuple[LateHost, ...]:
    """Workers whose own launch delays explain most of `cost_s`, the seconds a step that launching late costs; none with one replica."""
    delays = launch_delays(dense, graph)
    computed = np.isin(graph.table.op, (TraceOp.FORWARD, TraceOp.BACKWARD, TraceOp.OPTIMIZER))
    per_worker: Floats = np.array(
        [delays[computed & (graph.table.stage == s)].sum(axis=0, dtype=np.float64).mean(axis=1) for s in range(graph.table.num_stages)]
    )
    if per_worker.shape[1] < 2:
        return ()
    late = []
    for stage, mine in enumerate(per_worker):
        above = beside_others(mine[:, None])[:, 0]
        late += [LateHost(dp, stage, float(mine[dp]), float(mine[dp] - above[dp])) for dp in np.flatnonzero(above >= LEAST_PART * cost_s).tolist()]
    return tuple(sorted(late, key=lambda one: one.others_s - one.delay_s))
