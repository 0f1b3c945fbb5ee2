"""The what-if analysis of a trace: everything that replays say about it, as one value."""

from __future__ import annotations

import msgspec

from lurcher.ingest.op_trace import OpTrace
from lurcher.localize.whatif_causes import Causes, find_causes
from lurcher.localize.whatif_chunks import Chunks, chunks
from lurcher.localize.whatif_graph import Graph, build_graph
from lurcher.localize.whatif_launch import LateHost, late_hosts
from lurcher.localize.whatif_links import SlowLink, slow_links
from lurcher.localize.whatif_measures import WhatIf, measure
from lurcher.localize.whatif_order import Order, walk_order
from lurcher.localize.whatif_table import DenseTrace, dense_trace
from lurcher.localize.whatif_times import OpTimes, op_times
from lurcher.localize.whatif_workers import SlowWorker, slow_workers

LEAST_LAUNCH = 1.03
"""Launch delays are looked into if they make the step so much longer; the artifact of arXiv 2505.05713 takes the same figure."""
LEAST_LINK_PART = 0.01
"""A slow link must take so much of the step."""


class TraceAnalysis(msgspec.Struct, frozen=True, eq=False):
    """A trace with its graph, its replays and what they show."""

    dense: DenseTrace
    graph: Graph
    order: Order
    times: OpTimes
    what_if: WhatIf
    work: Chunks
    slow: tuple[SlowWorker, ...]
    causes: Causes
    late: tuple[LateHost, ...]
    links: tuple[SlowLink, ...]

    @property
    def num_replicas(self) -> int:
        """Data-parallel replicas."""
        return int(self.times.real_s.shape[1])

    @property
    def num_stages(self) -> int:
        """Pipeline stages."""
        return self.graph.table.num_stages

    @property
    def num_steps(self) -> int:
        """Sampled steps."""
        return int(self.times.real_s.shape[2])

    def ranks_of(self, dp: int, stage: int) -> tuple[int, ...]:
        """The global ranks of a worker; empty where the trace does not say them."""
        first = int(self.dense.ranks[dp, stage])
        return tuple(range(first, first + self.dense.trace.ranks_per_worker)) if first >= 0 else ()


def analyse(trace: OpTrace) -> TraceAnalysis:
    """Replay a trace in all its scenarios and look for what made it slow; UserError, in one line, where it is no pipeline's trace."""
    dense = dense_trace(trace)
    graph = build_graph(dense.table)
    times = op_times(dense, graph)
    order = walk_order(graph, (times.real_s.min(axis=(1, 2)) >= 0) & (times.ideal_s >= 0))
    found = measure(dense, graph, order, times)
    work = chunks(graph.table, times)
    slow = slow_workers(work)
    step_s = float(found.no_delay_s.mean())
    launch_s = float(found.measured_s.mean()) - step_s
    return TraceAnalysis(
        dense=dense,
        graph=graph,
        order=order,
        times=times,
        what_if=found,
        work=work,
        slow=slow,
        causes=find_causes(graph, order, times, work, slow),
        late=late_hosts(dense, graph, launch_s) if found.launch_slowdown >= LEAST_LAUNCH else (),
        links=slow_links(graph, times, LEAST_LINK_PART * step_s),
    )
