"""Emulated links: how long transfers between ranks take, by their bytes, their nodes and the faults in force. Pure arithmetic.

Like `pace.py` it belongs to the emulation: nothing that predicts, detects or plans may read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from lurcher.config import LayoutSection, PaceSection
from lurcher.faults import Fault, factor_at


class LinkPace:
    """The links of one job.

    Between nodes a transfer takes the link's latency and its bytes over the link's rate, times the factors of the faults in force. Inside a
    node links are too fast to count; a fault of factor F there adds F - 1 times what a link between nodes takes, so that x1 adds nothing.
    """

    def __init__(self, section: PaceSection, grid: LayoutSection, faults: Sequence[Fault]) -> None:
        self._latency_s = section.link_us * 1e-6
        self._byte_s = 1e-6 / section.link_mb_per_s if section.link_mb_per_s else 0.0
        self._node = grid.node
        self._faults = [(self._ends(*fault.where.ranks), fault) for fault in faults if fault.where.kind == "link"]

    def hop_s(self, source: int, target: int, num_bytes: float, iteration: int, elapsed_s: float) -> float:
        """Seconds of one message between two ranks. `elapsed_s`: since the job's first iteration, for faults that count seconds."""
        factor = self._factor(source, target, iteration, elapsed_s)
        healthy = 1.0 if self._node(source) != self._node(target) else 0.0
        return (factor - 1.0 + healthy) * (self._latency_s + num_bytes * self._byte_s)

    def ring_s(self, ranks: Sequence[int], num_bytes: float, iteration: int, elapsed_s: float) -> float:
        """Seconds of a sum of `num_bytes` over `ranks`, round a ring in this order: 2 (k - 1) steps of 1 / k of the bytes, each at the pace of the slowest link."""
        size = len(ranks)
        if size < 2:
            return 0.0
        edges = [*pairwise(ranks), (ranks[-1], ranks[0])]
        step_s = max(self.hop_s(source, target, num_bytes / size, iteration, elapsed_s) for source, target in edges)
        return 2 * (size - 1) * step_s

    def _factor(self, a: int, b: int, iteration: int, elapsed_s: float) -> float:
        factor = 1.0
        if self._faults:
            ends = self._ends(a, b)
            for where, fault in self._faults:
                if where == ends:
                    factor *= factor_at(fault, iteration, elapsed_s)
        return factor

    def _ends(self, a: int, b: int) -> tuple[str, int, int]:
        """The link that joins two ranks: that of their nodes, or within a node their own."""
        at, to = self._node(a), self._node(b)
        return ("node", min(at, to), max(at, to)) if at != to else ("rank", min(a, b), max(a, b))
