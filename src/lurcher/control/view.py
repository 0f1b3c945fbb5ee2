"""What the coordinator sees of the job: expected times, residuals, each rank's busy time against its own history."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from statistics import median
from types import MappingProxyType

import msgspec
import numpy as np
from numpy.typing import NDArray

from lurcher.config import DetectSection
from lurcher.control.episode import Sample
from lurcher.control.link_rates import links_s, with_links
from lurcher.control.measured import measured_rates
from lurcher.control.orders import StepSummary
from lurcher.control.parts import Part, together
from lurcher.control.roles import Ends, Roles
from lurcher.control.transfers import Transfers
from lurcher.layout import Layout
from lurcher.localize.links import Flow, Nodes, without
from lurcher.model.cost import CostModel, units_of
from lurcher.model.layout_walk import LayoutWalk
from lurcher.model.rates import Rates
from lurcher.records import Component

HISTORY = 256
"""Iterations kept: enough to date an onset and to price what was lost since."""
RECENT = 5
"""Iterations in a rank's recent median."""
PLANNED = 10
"""Iterations of work that a plan is made for: one alone would tune the split to its own documents."""
PRICED = 64
"""Layouts with slow links whose cost is remembered."""
NO_LINKS: Mapping[Component, float] = MappingProxyType({})
SUSPICIOUS = 1.06
"""A rank this far above the others is kept out of the fit at once, before anything is confirmed."""


class View:
    """Turns iterations into residuals and ratios. The model learns only from ranks and iterations that nothing speaks against.

    It learns under the healthy layout. Under another one the ranks' levels in their new roles are learned beside it; where that
    becomes the healthy layout, because ranks are gone for good, the model begins anew. With `nodes` it looks at what passes between ranks, too.
    """

    def __init__(self, detect: DetectSection, schedule: str, layout: Layout, nodes: Nodes | None = None) -> None:
        self.model = CostModel(schedule)
        self._schedule = schedule
        self._reference = layout  # the one that the model learned under; its micro-batches all run at home
        self._home = layout
        self._roles = Roles(layout)
        self.transfers = Transfers(nodes) if nodes is not None else None
        self._links_s: dict[object, float] = {}
        self._walk: LayoutWalk | None = None  # of the last layout with routes
        self.history: deque[Sample] = deque(maxlen=HISTORY)
        self.ratios: dict[int, float] = {}
        self._ratio_history: deque[tuple[int, dict[Part, float]]] = deque(maxlen=HISTORY)
        self._raw_ratios: deque[tuple[int, dict[int, float]]] = deque(maxlen=RECENT)
        self._per_unit: deque[dict[int, float]] = deque(maxlen=RECENT)
        self._spreads: deque[float] = deque(maxlen=HISTORY)
        self._waiting: list[StepSummary] = []
        self._steps: deque[StepSummary] = deque(maxlen=PLANNED)

    @property
    def ready(self) -> bool:
        """The model can predict."""
        return self.model.ready

    @property
    def noise(self) -> float:
        """Scatter of a rank's busy ratio around the others in one healthy iteration."""
        return max(0.01, median(self._spreads)) if self._spreads else 0.03

    def add(
        self, step: StepSummary, slowdown: dict[int, float], links: Mapping[Component, float] = NO_LINKS, *, settled: bool
    ) -> tuple[Sample, list[tuple[int, float]]]:
        """Take one iteration; returns it beside its healthy expectation, and (iteration, residual) pairs that are new.

        The residual is observed / expected with the factors of ranks and links already proven slow put in: a second fault shows, the first does not.
        When the model becomes ready, the iterations that it was fitted on come out at once.
        """
        self._steps.append(step)
        if self.transfers is not None:
            self.transfers.add(step, links, settled=settled)
        if self._roles.is_new(step.layout):
            self._roles.enter(step.layout, self._ends())
        if settled:
            self._settle_in(step.layout)
        was_ready = self.model.ready
        raw = self._roles.corrected(self.model.rank_ratios(step.layout, step.workload, step.chunks), slowdown)
        self._raw_ratios.append((step.iteration, raw))
        self.ratios = _against_the_others(raw, slowdown)
        self._ratio_history.append((step.iteration, together(self.ratios, self.link_ratios(links, step.iteration))))
        self._per_unit.append(_per_unit(step))
        healthy_s = self.expected_s(step.layout, step.workload)
        sample = Sample(step.iteration, step.duration_s, healthy_s)
        odd = {r for r, ratio in self.ratios.items() if ratio > SUSPICIOUS} if was_ready else set()
        if settled and self.ratios and not odd:
            self._spreads.append(_spread(self.ratios))
        not_learned = odd | set(slowdown) | self._roles.changed
        if settled and is_plain(step.layout):
            self.model.observe(step.layout, step.workload, step.chunks, step.duration_s, frozen_ranks=not_learned)
        residuals = []
        if was_ready:
            self.history.append(sample)
            residuals.append((step.iteration, step.duration_s / self.expected_s(step.layout, step.workload, slowdown, links)))
        elif self.model.ready:
            for earlier in (*self._waiting, step):
                expected_s = self.expected_s(earlier.layout, earlier.workload)
                self.history.append(Sample(earlier.iteration, earlier.duration_s, expected_s))
                residuals.append((earlier.iteration, earlier.duration_s / expected_s))
            self._waiting = []
        else:
            self._waiting.append(step)
        return (self.history[-1] if self.history else sample), residuals

    def expected_s(
        self,
        layout: Layout,
        workload: NDArray[np.void],
        slowdown: Mapping[int, float] | None = None,
        links: Mapping[Component, float] = NO_LINKS,
    ) -> float:
        """Seconds that an iteration of this workload should take, with these ranks and links slow by these factors; NaN until ready.

        The walk of the real micro-batches, wherever they run; each rank by its level in its present role.
        """
        if not self.model.ready:
            return float("nan")
        stretched, extra_s = self._stretched(layout, slowdown or {}), self._extra_s(layout, links)
        if is_plain(layout):
            return self.model.expected_s(layout, workload, stretched) + extra_s
        if self._walk is None or self._walk.layout != layout:
            self._walk = LayoutWalk(layout, self._schedule)
        return self._walk.seconds(self.model, workload, stretched) + extra_s

    def _extra_s(self, layout: Layout, links: Mapping[Component, float]) -> float:
        """What links cost an iteration of this layout beyond what the healthy one's cost it: that was learned with everything else."""
        if self.transfers is None or (not links and layout.replicas == self._reference.replicas):
            return 0.0
        key = layout.replicas, layout.routes, tuple((link, round(slowdown, 2)) for link, slowdown in links.items())
        if key not in self._links_s:
            if len(self._links_s) >= PRICED:
                self._links_s.clear()
            slow = self.rates({}, dict(key[2]))
            healthy = msgspec.structs.replace(slow, links=())
            self._links_s[key] = links_s(layout, slow, self._schedule) - links_s(self._reference, healthy, self._schedule)
        return self._links_s[key]

    def _stretched(self, layout: Layout, slowdown: Mapping[int, float]) -> dict[int, float]:
        """The factors of slow ranks, and what the layout's roles do to all."""
        levels = self._roles.levels(layout)
        return {rank: slowdown.get(rank, 1.0) * levels.get(rank, 1.0) for rank in {*slowdown, *levels}}

    def _ends(self) -> Ends:
        if not self.model.ready:
            return Ends()
        rates = self.rates({})
        return Ends(rates.embed_layers, rates.head_layers)

    def rates(self, slowdown: Mapping[int, float], links: Mapping[Component, float] = NO_LINKS) -> Rates:
        """What the planner is told: rates of healthy parts as learned, the slow ranks, and the slow links."""
        rates = measured_rates(self.model, self._reference, self.recent_workload(), slowdown)
        if self.transfers is None:
            return rates
        return with_links(rates, self._reference, self._schedule, self.transfers.measured(), links, self.transfers.nodes)

    def rehome(self, layout: Layout) -> None:
        """From now on this is the healthy layout; once it is in force and nothing is slow, the model learns it."""
        self._home = layout

    def _settle_in(self, layout: Layout) -> None:
        """Learn the healthy layout where it is another than the one learned before."""
        if self._home.replicas == self._reference.replicas or layout.replicas != self._home.replicas or not is_plain(self._home):
            return
        self._reference = self._home
        self._links_s.clear()
        if self.transfers is not None:
            self.transfers.forget()
        if self._roles.changed:
            self.model, self._roles = CostModel(self._schedule), Roles(layout)
            self._waiting = []

    def recent_ratios(self, since: int) -> dict[int, float]:
        """Median of each rank's busy time over its own history in the last few iterations, none before `since`."""
        last = [ratios for iteration, ratios in self._raw_ratios if iteration >= since]
        ranks = {r for ratios in last for r in ratios}
        return {r: median(ratios[r] for ratios in last if r in ratios) for r in sorted(ranks)}

    def recent_wait_share(self) -> dict[int, float]:
        """Median fraction of the iteration that each rank waits."""
        shares: dict[int, list[float]] = {}
        for step in list(self._steps)[-RECENT:]:
            for row in step.rows:
                shares.setdefault(int(row["rank"]), []).append(float(row["wait_s"] / row["duration_s"]))
        return {r: median(values) for r, values in shares.items()}

    def recent_per_unit(self) -> dict[int, float]:
        """Median busy seconds per token and layer held of each rank over the last few iterations."""
        ranks = {r for units in self._per_unit for r in units}
        return {r: median(units[r] for units in self._per_unit if r in units) for r in sorted(ranks)}

    def recent_workload(self) -> NDArray[np.void]:
        """WORKLOAD rows of the last few iterations: what the next ones will be like."""
        return np.concatenate([s.workload for s in self._steps])

    def mean_expected_s(self, layout: Layout, slowdown: Mapping[int, float], links: Mapping[Component, float] = NO_LINKS) -> float:
        """What the last few iterations should have taken on a layout, with these ranks and links slow by these factors."""
        return float(np.mean([self.expected_s(layout, s.workload, slowdown, links) for s in self._steps]))

    def flows(self, since: int, known: Collection[Component]) -> tuple[Flow, ...]:
        """What passes between ranks, over its own history; without what needs a link that is known to be slow."""
        if self.transfers is None or not self.history:
            return ()
        return without(self.transfers.flows(since, self.healthy_s()), known)

    def link_ratios(self, links: Collection[Component], since: int) -> dict[Component, float]:
        """Transfer over healthy of each of these links, by the last few iterations, none before `since`; without those that show nothing."""
        return self.transfers.readings(links, since) if self.transfers is not None else {}

    def known_links(self, links: Collection[Component], since: int) -> tuple[Component, ...]:
        """Those of these links that something with a healthy history needs at present."""
        return tuple(self.transfers.readings(links, since, inferred=False)) if self.transfers is not None else ()

    def links_like(self, parts: Collection[Part]) -> tuple[Component, ...]:
        """The links in use that the links among these parts can be compared with."""
        return self.transfers.like([part for part in parts if not isinstance(part, int)]) if self.transfers is not None else ()

    def healthy_s(self) -> float:
        """What the recent iterations should have taken on healthy parts."""
        return median(s.healthy_s for s in list(self.history)[-RECENT:])

    def lost_since(self, onset: int) -> float:
        """Seconds above the healthy expectation from `onset` on."""
        return sum(max(0.0, s.duration_s - s.healthy_s) for s in self.history if s.iteration >= onset)

    def last_slow(self, part: Part) -> int:
        """The last iteration in which the part stood out."""
        slow = [iteration for iteration, ratios in self._ratio_history if ratios.get(part, 1.0) > _halfway(self._ratio_history, part)]
        return slow[-1] if slow else self._ratio_history[-1][0]


def is_plain(layout: Layout) -> bool:
    """Whether every micro-batch runs at home, and each stage holds one chunk of layers: what the model walks."""
    return not layout.routes and all(stage.ranks and len(stage.chunks) == 1 for _, _, stage in layout.stages())


def _halfway(history: deque[tuple[int, dict[Part, float]]], part: Part) -> float:
    worst = sorted(ratios[part] for _, ratios in history if part in ratios)
    top = worst[int(0.9 * (len(worst) - 1))] if worst else 1.0
    return 1.0 + max(0.06, 0.35 * (top - 1.0))


def _against_the_others(ratios: dict[int, float], slow: Collection[int]) -> dict[int, float]:
    """Divide out what all ranks share that are not known to be slow: a change of the work or of the whole machine blames nobody."""
    if not ratios:
        return {}
    common = median([ratio for rank, ratio in ratios.items() if rank not in slow] or ratios.values())
    return {r: ratio / common for r, ratio in ratios.items()}


def _spread(ratios: dict[int, float]) -> float:
    values = np.array(list(ratios.values()))
    return float(1.4826 * np.median(np.abs(values - np.median(values))))


def _per_unit(step: StepSummary) -> dict[int, float]:
    """Busy seconds per token and layer that a rank holds: a rank that was given less is not faster for it."""
    units = units_of(step.layout)
    return {int(r["rank"]): float(r["busy_s"] / (r["num_tokens"] * units[r["rank"]])) for r in step.rows if r["num_tokens"] > 0}
