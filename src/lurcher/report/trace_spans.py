"""One step of a trace as spans of time on each worker: as it was measured, and as it would be if all were alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lurcher.ingest.op_trace import OP_NAMES, TraceOp
from lurcher.localize.whatif import TraceAnalysis
from lurcher.localize.whatif_replay import replay_spans
from lurcher.localize.whatif_table import Array
from lurcher.localize.whatif_times import Floats

KIND_OF = {
    TraceOp.FORWARD: "forward",
    TraceOp.BACKWARD: "backward",
    TraceOp.OPTIMIZER: "other",
    TraceOp.GC: "other",
}
"""Kinds of the report's bars; everything else is a transfer."""
IN_BACKGROUND = (TraceOp.FORWARD_SEND, TraceOp.FORWARD_RECV, TraceOp.BACKWARD_SEND, TraceOp.BACKWARD_RECV)
"""Transfers that run beside computation."""


@dataclass(frozen=True, eq=False)
class StepSpans:
    """Begin, end and own time of each operation in each replica, (O, D), seconds since the step began. Before its own time an operation waits."""

    title: str
    step: int
    begin_s: Floats
    end_s: Floats
    own_s: Floats

    @property
    def length_s(self) -> float:
        """How long the step takes."""
        return float(self.end_s.max())


def typical_step(analysis: TraceAnalysis) -> int:
    """Place of the step whose length is the median one's."""
    times_s = analysis.what_if.no_delay_s
    return int(np.argsort(times_s, kind="stable")[len(times_s) // 2])


def measured_spans(analysis: TraceAnalysis, place: int) -> StepSpans:
    """The step at a place among the trace's steps, as it was measured."""
    begin: Array = analysis.dense.start_s[:, :, place].astype(np.float64)
    end = begin + analysis.dense.duration_s[:, :, place]
    first = begin.min()
    own = np.minimum(np.maximum(analysis.times.real_s[:, :, place], 0.0), end - begin)
    return StepSpans("as measured", int(analysis.what_if.steps[place]), begin - first, end - first, own)


def ideal_spans(analysis: TraceAnalysis, place: int) -> StepSpans:
    """The same step if every operation took the time of its kind: equal in all replicas."""
    ideal = analysis.times.ideal_s
    begins, ends = replay_spans(analysis.order, lambda op: ideal[op : op + 1, None], len(ideal), (1, 1))
    shape = analysis.times.real_s.shape[:2]
    begin, end = (np.broadcast_to(values[:, :, 0], shape) for values in (begins, ends))
    return StepSpans("if all were alike", int(analysis.what_if.steps[place]), begin, end, end - begin)


def op_words(analysis: TraceAnalysis, op: int) -> str:
    """An operation with its micro-batch, for hovering."""
    table = analysis.graph.table
    number = table.microbatch[op] if table.microbatch[op] >= 0 else table.seq[op]
    return f"{OP_NAMES[table.op[op]]} {number}"
