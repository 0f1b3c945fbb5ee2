"""Slow links by what crosses them: a link between two nodes is slow in everything that goes over it, and in nothing that does not.

Sums go round a ring, which is as slow as the slowest link on it; so each slow sum or pair accuses every link that it needs, and each
sound one acquits all of its own. What is left is one link, or several that the same transfers need: then only a benchmark can tell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from lurcher.layout import Layout
from lurcher.localize.line import line_for
from lurcher.records import GROUP_KINDS, Component, Suspicion

LEAST_SHARE = 0.02
"""A transfer that costs an iteration less than this much more than usual is not what made it slow, however many times longer it takes."""
MOST_NAMED = 32
"""Links that the same transfers need and that a benchmark is to tell apart."""


class Nodes:
    """Which node each rank is on, and the link that joins two ranks: their nodes', or within a node their own. `ends`: ranks of nodes at which their links end."""

    def __init__(self, node_of: Mapping[int, int], ends: Iterable[int] = ()) -> None:
        self._node_of = dict(node_of)
        self._end = {node_of[rank]: rank for rank in ends}
        for rank in sorted(node_of):
            self._end.setdefault(node_of[rank], rank)

    def among(self, members: Collection[int]) -> Nodes:
        """The same with links that end at these ranks; where they did, they still do."""
        there = set(members)
        if there.issuperset(self._end.values()):
            return self
        kept = [rank for rank in self._end.values() if rank in there]
        lost = {self._node_of[rank] for rank in self._end.values()} - {self._node_of[rank] for rank in kept}
        others = {self._node_of[rank]: rank for rank in sorted(there, reverse=True) if self._node_of[rank] in lost}
        return Nodes(self._node_of, (*kept, *others.values()))

    @property
    def places(self) -> dict[int, int]:
        """Node of every rank."""
        return dict(self._node_of)

    def joins_nodes(self, link: Component) -> bool:
        """Whether it is a link between nodes."""
        a, b = link.ranks
        return self._node_of[a] != self._node_of[b]

    def ends(self, link: Component) -> tuple[int, int]:
        """The nodes, or within a node the ranks, that it joins."""
        a, b = link.ranks
        return (self._node_of[a], self._node_of[b]) if self.joins_nodes(link) else (a, b)

    def between(self, a: int, b: int) -> Component:
        """The link; between nodes it ends at one rank of each, mostly the first."""
        at, to = sorted((self._node_of[a], self._node_of[b]))
        if at == to:
            return Component("link", f"{min(a, b)}-{max(a, b)}", (min(a, b), max(a, b)))
        return Component("link", f"node{at}-node{to}", tuple(sorted((self._end[at], self._end[to]))))

    def around(self, ring: Sequence[int]) -> frozenset[Component]:
        """The links of a ring of ranks; of two ranks, the one between them."""
        return frozenset(self.between(a, b) for a, b in (*pairwise(ring), (ring[-1], ring[0])))


class Flow(NamedTuple):
    """What a group sums or a pair of ranks passes: the links that it needs, and its time over its own history.

    `noise`: relative scatter of that time when healthy. `share`: what it costs an iteration more than usual, over the iteration's healthy time.
    """

    kind: str
    ranks: tuple[int, ...]
    links: frozenset[Component]
    ratio: float
    noise: float = 0.0
    share: float = 1.0

    @property
    def name(self) -> str:
        """For a sentence."""
        what = "what passes between" if self.kind == "pp" else f"the {self.kind} sum of"
        return f"{what} ranks {', '.join(map(str, self.ranks[:4]))}{f' and {len(self.ranks) - 4} more' if len(self.ranks) > 4 else ''}"


def ranks_of_row(kind: int, a: int, b: int, rings: Mapping[int, tuple[int, ...]]) -> tuple[str, tuple[int, ...]]:
    """Kind and ranks of a TRANSFER row, those of a group in the order in which its sums go round. `rings`: see `rings_of`."""
    return GROUP_KINDS[kind], (a, b) if b >= 0 else rings[a]


def rings_of(layout: Layout) -> dict[int, tuple[int, ...]]:
    """The ranks of each group, by `Group.id`, in the order in which sums go round."""
    return {group.id: layout.in_order(group.ranks) for group in layout.groups()}


def link_suspects(flows: Sequence[Flow], noise: float, min_slowdown: float, *, alone: bool = True) -> tuple[Suspicion, ...]:
    """The links that explain the slow flows, most likely first; none where nothing is slow, or where sound flows cross all of them.

    `alone`: no rank is suspected.
    """
    line = line_for(len(flows), noise, min_slowdown)
    slow = [f for f in flows if f.share > LEAST_SHARE and f.ratio > line_for(len(flows), max(noise, f.noise), min_slowdown)]
    sound = {link for f in flows if f.ratio < 1.0 + (line - 1.0) / 2 for link in f.links}
    explains = {link: [f for f in slow if link in f.links] for f in slow for link in sorted(f.links - sound, key=_by_ends)}
    if not explains:
        return ()
    most = max(map(len, explains.values()))
    # One link that explains all is likelier than several at once.
    named = [link for link, of in explains.items() if len(of) == most or most < len(slow)]
    found = [_suspicion(link, explains[link], line, len(named), alone=alone) for link in named[:MOST_NAMED]]
    return tuple(sorted(found, key=lambda s: (-s.confidence, -s.slowdown, _by_ends(s.component))))


def _suspicion(link: Component, slow: Sequence[Flow], line: float, num_named: int, *, alone: bool) -> Suspicion:
    slowdown = median(f.ratio for f in slow)
    worst = max(slow, key=lambda f: f.ratio)
    evidence = [f"with everybody there, {worst.name} takes x{worst.ratio:.2f} of its usual time; the line is x{line:.2f}"]
    if len(slow) > 1:
        evidence.append(f"so do {len(slow) - 1} more that need link {link.id}, and nothing that crosses it is as usual")
    if alone:
        evidence.append("no rank's own work rose")
    if num_named > 1:
        evidence.append(f"the same transfers need {num_named - 1} other link{'s' * (num_named > 2)}: a benchmark must tell which is slow")
    confidence = 0.8 * (1.0 - 0.5 * (line - 1.0) / (slowdown - 1.0)) / num_named
    return Suspicion(link, "communication", slowdown, round(max(0.0, confidence), 3), tuple(evidence))


def _by_ends(link: Component) -> tuple[int, ...]:
    return link.ranks


def without(flows: Iterable[Flow], known: Iterable[Component]) -> tuple[Flow, ...]:
    """The flows that need none of the links that are known to be slow."""
    slow = frozenset(known)
    return tuple(f for f in flows if not f.links & slow)
