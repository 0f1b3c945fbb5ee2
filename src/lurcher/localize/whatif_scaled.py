"""The step if each stage's computation took other times: what a new cut of the layers would bring."""

from __future__ import annotations

import numpy as np

from lurcher.ingest.op_trace import TraceOp
from lurcher.localize.whatif_graph import Graph
from lurcher.localize.whatif_order import Order
from lurcher.localize.whatif_replay import replay
from lurcher.localize.whatif_times import Array, Floats, OpTimes


def scaled_steps(graph: Graph, order: Order, times: OpTimes, factors: Floats) -> Floats:
    """Mean step in seconds, (C,), for C cases; `factors` (C, 2, P) multiply the forward and backward passes of each stage."""
    stage, kind = graph.table.stage.tolist(), graph.table.op.tolist()

    def cost_of(op: int) -> Array:
        if kind[op] in (TraceOp.FORWARD, TraceOp.BACKWARD):
            return np.asarray(factors[:, kind[op], stage[op], None, None] * times.real_s[op])
        return np.asarray(times.real_s[op][None])

    return np.asarray(replay(order, cost_of, (len(factors), *times.real_s.shape[1:])).mean(axis=1))
