"""What every group and pair of ranks needs for its transfers, over its own history: what slow links are seen by, and what rates are measured from.

A group is known by its ranks in the order of its ring: in another order it crosses other links, and has another history. What a layout
makes new has none, and tells nothing until it is known to be healthy; but where it needs a link that is known to be slow, its first
iterations are taken to be slow by just that, so that it shows when the link is well again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from statistics import median
from typing import NamedTuple

from lurcher.control.orders import StepSummary
from lurcher.localize.links import Flow, Nodes, ranks_of_row, rings_of
from lurcher.records import Component

WINDOW = 64
"""Healthy iterations remembered."""
LEAST_HISTORY = 8
"""Of them needed before a transfer can be held against its history."""
LEAST_SLOW = 5
"""Iterations over a slow link that its usual time is inferred from."""
RECENT = 5
"""Iterations in the present median."""
LEAST_S = 1e-6
"""No transfer is faster than a clock shows."""

Key = tuple[str, tuple[int, ...]]
"""Kind, and the ranks in order."""


class _Seen(NamedTuple):
    """One iteration's transfer."""

    iteration: int
    seconds: float
    num_calls: int


class Measured(NamedTuple):
    """A transfer when healthy: seconds and bytes of one call."""

    kind: str
    ranks: tuple[int, ...]
    seconds: float
    num_bytes: int


class Transfers:
    """History of all that passes between ranks. Learns from iterations that nothing speaks against."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self._healthy: dict[Key, deque[float]] = {}
        self._bytes: dict[Key, int] = {}
        self._recent: dict[Key, deque[_Seen]] = {}
        self._over_slow: dict[Key, list[float]] = {}  # healthy times as inferred, of what has no history

    def add(self, step: StepSummary, slow: Mapping[Component, float], *, settled: bool) -> None:
        """Take one iteration. `slow`: links known to be slow, by how much."""
        self.nodes = self.nodes.among(step.layout.members)
        rings = rings_of(step.layout)
        present: set[Key] = set()
        for kind, a, b, seconds, num_bytes, count in step.transfers.tolist():
            key = ranks_of_row(kind, a, b, rings)
            present.add(key)
            self._recent.setdefault(key, deque(maxlen=RECENT)).append(_Seen(step.iteration, seconds, count))
            if settled:
                self._healthy.setdefault(key, deque(maxlen=WINDOW)).append(seconds)
                self._bytes[key] = num_bytes
            self._infer(key, seconds, slow)
        self._recent = {key: seen for key, seen in self._recent.items() if key in present}
        self._over_slow = {key: times for key, times in self._over_slow.items() if key in present and self.nodes.around(key[1]) & slow.keys()}

    def _infer(self, key: Key, seconds: float, slow: Mapping[Component, float]) -> None:
        factor = max((slow[link] for link in self.nodes.around(key[1]) if link in slow), default=1.0)
        if factor > 1.0 and not self._is_known(key) and len(times := self._over_slow.setdefault(key, [])) < LEAST_SLOW:
            times.append(seconds / factor)

    def forget(self) -> None:
        """Another layout is the healthy one: what was learned says little of it."""
        self._healthy.clear()
        self._bytes.clear()

    def flows(self, since: int, healthy_s: float) -> tuple[Flow, ...]:
        """All transfers with a history, by the median of their last iterations, none before `since`. `healthy_s`: what an iteration should take."""
        known = (self._recent_flow(key, since, healthy_s) for key in self._recent if self._is_known(key))
        return tuple(flow for flow in known if flow is not None)

    def readings(self, links: Collection[Component], since: int, *, inferred: bool = True) -> dict[Component, float]:
        """Transfer over healthy, by the iterations from `since` on, of each of these links that something needs: of what scatters least.

        `inferred`: also by what has no history but that over a slow link. If the link was well again by then, that shows nothing.
        """
        found: dict[Component, Flow] = {}
        flows = self.flows(since, 1.0) if links else ()
        if links and inferred:
            keys = (key for key, times in self._over_slow.items() if len(times) == LEAST_SLOW)
            flows += tuple(flow for key in keys if (flow := self._recent_flow(key, since, 1.0)) is not None)
        for flow in flows:
            for link in flow.links.intersection(links):
                if link not in found or flow.noise < found[link].noise:
                    found[link] = flow
        return {link: flow.ratio for link, flow in found.items()}

    def used(self) -> tuple[Component, ...]:
        """The links that the present layout's transfers need, in order."""
        links = {link for _, ranks in self._recent for link in self.nodes.around(ranks)}
        return tuple(sorted(links, key=lambda link: link.ranks))

    def like(self, links: Collection[Component]) -> tuple[Component, ...]:
        """Of those, the ones that these links can be compared with: between nodes, or within one."""
        sorts = {self.nodes.joins_nodes(link) for link in links}
        return tuple(link for link in self.used() if self.nodes.joins_nodes(link) in sorts)

    def measured(self) -> tuple[Measured, ...]:
        """All that was learned, healthy."""
        return tuple(Measured(*key, median(seconds), self._bytes[key]) for key, seconds in self._healthy.items() if self._is_known(key))

    def _is_known(self, key: Key) -> bool:
        return len(self._healthy.get(key, ())) >= LEAST_HISTORY

    def _recent_flow(self, key: Key, since: int, healthy_s: float) -> Flow | None:
        last = [one for one in self._recent[key] if one.iteration >= since]
        if not last:
            return None
        usual = self._healthy[key] if self._is_known(key) else self._over_slow[key]
        usual_s, seconds = max(median(usual), LEAST_S), median(one.seconds for one in last)
        noise = 1.4826 * median(abs(one / usual_s - 1.0) for one in usual)
        kind, ranks = key
        return Flow(kind, ranks, self.nodes.around(ranks), seconds / usual_s, noise, (seconds - usual_s) * last[-1].num_calls / healthy_s)
