"""A job on paper whose ranks are on nodes: what passes between nodes takes time, by the emulation's own arithmetic, and link faults stretch it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from tests.unit.paper_job import PaperJob

from lurcher.config import LayoutSection, PaceSection
from lurcher.control.orders import BenchReport, StepSummary
from lurcher.faults import parse_fault
from lurcher.layout import Layout
from lurcher.localize.links import Nodes
from lurcher.model.link_pace import LinkPace
from lurcher.records import GROUP_KINDS, TRANSFER, BenchResult, Component
from lurcher.runtime.hops import parts
from lurcher.validate.rounds import Round

HOP_BYTES = 16_000
LAYER_BYTES = 150_000
END_BYTES = 66_000
MESSAGE_BYTES = 250_000
REAL_S = 8e-4
"""What any transfer takes on top of the link."""


@dataclass
class PaperLinks(PaperJob):
    """`slow`: texts of link faults."""

    ranks_per_node: int = 2
    slow: tuple[str, ...] = ()
    link_us: float = 200.0
    link_mb_per_s: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        grid = LayoutSection(ranks_per_node=self.ranks_per_node)
        self.nodes = Nodes({rank: grid.node(rank) for rank in self.layout.members})
        section = PaceSection(link_us=self.link_us, link_mb_per_s=self.link_mb_per_s)
        self.links = LinkPace(section, grid, [parse_fault(text) for text in self.slow])

    def step(self, iteration: int, layout: Layout, pause_s: float = 0.0) -> StepSummary:
        """The same with transfers: sums at the end, and a hop for every micro-batch that a stage waits for."""
        plain = super().step(iteration, layout, pause_s)
        sums = [self._sum(iteration, layout, group.id, group.ranks) for group in layout.groups() if group.kind == "dp"]
        hops = [self._hop(iteration, layout, d, a, b) for d, a, b in _borders(layout)]
        slowest_s = max((hop["seconds"] * hop["count"] for hop in hops), default=0.0) + max((one["seconds"] for one in sums), default=0.0)
        rows = np.array([tuple(row.values()) for row in (*sums, *hops)], TRANSFER)
        return msgspec.structs.replace(plain, duration_s=plain.duration_s + slowest_s, transfers=rows)

    def _sum(self, iteration: int, layout: Layout, group: int, ranks: tuple[int, ...]) -> dict[str, float]:
        place = layout.position(ranks[0])
        stage = layout.replicas[place.dp].stages[place.pp]
        num_bytes = LAYER_BYTES * stage.num_layers + END_BYTES * (place.pp in (0, len(layout.replicas[0].stages) - 1))
        seconds = self._scattered(self.links.ring_s(layout.in_order(ranks), num_bytes, iteration, 0.0))
        return {"kind": GROUP_KINDS.index("dp"), "a": group, "b": -1, "seconds": seconds, "num_bytes": num_bytes, "count": 1}

    def _hop(self, iteration: int, layout: Layout, d: int, a: int, b: int) -> dict[str, float]:
        seconds = self._scattered(self.links.hop_s(a, b, HOP_BYTES, iteration, 0.0))
        count = layout.replicas[d].microbatches
        return {"kind": GROUP_KINDS.index("pp"), "a": min(a, b), "b": max(a, b), "seconds": seconds, "num_bytes": HOP_BYTES, "count": count}

    def _scattered(self, link_s: float) -> float:
        """The link's part scatters little, the host's part by half."""
        return link_s * (1 + 0.5 * self.noise * float(self.rng.standard_normal())) + REAL_S * float(np.exp(0.5 * self.rng.standard_normal()))

    def benchmark_links(self, rounds: tuple[Round, ...], iteration: int) -> BenchReport:
        """The link benchmark of these pairs at the border after `iteration`."""
        pairs = [pair for one in rounds for pair in one]
        times = {pair: self._scattered(self.links.hop_s(*pair, MESSAGE_BYTES, iteration, 0.0)) for pair in pairs}
        return BenchReport(iteration, tuple(BenchResult(Component("link", f"{a}-{b}", (a, b)), "link", s, 4) for (a, b), s in times.items()))


def _borders(layout: Layout) -> list[tuple[int, int, int]]:
    """Replica, and both ranks of everything that passes between two of its stages."""
    found = []
    for d, replica in enumerate(layout.replicas):
        for one, other in zip(replica.stages, replica.stages[1:], strict=False):
            if one.ranks and other.ranks:
                found += [(d, part.source, part.target) for part in parts(one.ranks, other.ranks, HOP_BYTES)]
    return found
