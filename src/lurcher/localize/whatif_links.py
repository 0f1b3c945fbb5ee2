"""Which link between two stages transfers slower than the same link of the other replicas, waiting taken off."""

from __future__ import annotations

import msgspec
import numpy as np

from lurcher.ingest.op_trace import OP_NAMES, TraceOp
from lurcher.localize.whatif_graph import Graph
from lurcher.localize.whatif_times import Floats, OpTimes
from lurcher.localize.whatif_workers import beside_others

LEAST_SLOWDOWN = 1.5
"""Healthy links differ by 1.6 in GREYHOUND's own log where they differ in kind; of one kind a half more is much."""


class SlowLink(msgspec.Struct, frozen=True):
    """Transfers of one kind between two stages of replica `dp`: mean seconds of one, and of the same transfer elsewhere (the median)."""

    dp: int
    sender: int
    receiver: int
    kind: str
    transfer_s: float
    others_s: float

    @property
    def slowdown(self) -> float:
        """Its time over the others'."""
        return self.transfer_s / self.others_s if self.others_s > 0 else float("inf")


def slow_links(graph: Graph, times: OpTimes, least_s: float) -> tuple[SlowLink, ...]:
    """Links that stand out, the costliest first; over a step their transfers must take at least `least_s` more. None with one replica."""
    if times.real_s.shape[1] < 2:
        return ()
    sums: dict[tuple[int, int, int], list[int]] = {}
    for group in graph.groups:
        if len(group) == 2 and graph.table.op[group[0]] in (TraceOp.FORWARD_SEND, TraceOp.BACKWARD_SEND):
            key = (int(graph.table.op[group[0]]), int(graph.table.stage[group[0]]), int(graph.table.stage[group[1]]))
            sums.setdefault(key, []).append(group[1])
    found = []
    for (kind, sender, receiver), receives in sums.items():
        mine: Floats = np.maximum(times.real_s[receives], 0).mean(axis=(0, 2))
        others = mine - beside_others(mine[:, None])[:, 0]
        for dp in np.flatnonzero((mine >= LEAST_SLOWDOWN * others) & (len(receives) * (mine - others) >= least_s)).tolist():
            found.append(SlowLink(dp, sender, receiver, OP_NAMES[kind], float(mine[dp]), float(others[dp])))
    return tuple(sorted(found, key=lambda link: link.others_s - link.transfer_s))
