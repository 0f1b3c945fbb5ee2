"""How long each operation took by itself, and how long it would take if all of its kind were alike.

Formulas of arXiv 2505.05713, section 3, as its artifact (ByteDance-Seed/StragglerAnalysis) computes them.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from lurcher.ingest.op_trace import TraceOp
from lurcher.localize.whatif_graph import Graph
from lurcher.localize.whatif_middle import median
from lurcher.localize.whatif_table import DenseTrace

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]

CLOCK_ERROR_S = 1e-2
"""A transfer that ended so long before its last member started is an error of the clocks: it counts as 0. From the artifact."""
_OWN_WORK = (TraceOp.FORWARD, TraceOp.BACKWARD, TraceOp.OPTIMIZER, TraceOp.GC)


class OpTimes(msgspec.Struct, frozen=True, eq=False):
    """`real_s`: (O, D, T), an operation's own time, waiting for others removed; `ideal_s`: (O,), what it takes if all of its kind are alike."""

    real_s: Floats
    ideal_s: Floats


def op_times(dense: DenseTrace, graph: Graph) -> OpTimes:
    """Own and ideal times. A computation's own time is its duration; a transfer's begins when the last member of its group starts.

    Ideal is the mean over all stages, replicas, steps and micro-batches for computation, the median for communication.
    """
    ends = dense.start_s + dense.duration_s
    real = dense.duration_s.copy()
    synced = graph.synced()
    for group in graph.groups:
        ops = list(group)
        begun = dense.start_s[ops].max(axis=0)
        if synced[ops[0]]:
            begun = begun.max(axis=0, keepdims=True)
        transfer = ends[ops] - begun
        real[ops] = np.where(transfer <= -CLOCK_ERROR_S, 0, transfer)
    return OpTimes(real.astype(np.float64), _ideal(graph, real))


def _ideal(graph: Graph, real: Array) -> Floats:
    ideal = np.zeros(len(real))
    for kind in sorted(set(graph.table.op.tolist())):
        mine = graph.table.op == kind
        values = real[mine]
        ideal[mine] = np.mean(values, dtype=np.float64) if kind in _OWN_WORK else _median(values)
    return ideal


def _median(values: Array) -> float:
    """In the trace's own precision, as the published figures are."""
    return float(np.asarray(median(values.astype(np.float64).ravel()), values.dtype))


def launch_delays(dense: DenseTrace, graph: Graph) -> Array:
    """By how much each operation started after everything it waits for had ended, (O, D, T) in seconds; its host was late. Never below 0."""
    ends = dense.start_s + dense.duration_s
    begin = dense.start_s.min(axis=(0, 1))
    delays = np.empty_like(dense.start_s)
    for op, before in enumerate(graph.before):
        ready = begin
        for earlier in before:
            ready = np.maximum(ready, ends[earlier])
        delays[op] = dense.start_s[op] - ready
    return np.maximum(delays, 0, out=delays)
