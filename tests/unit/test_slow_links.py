"""Which link: out of what crosses it, on random nodes and layouts; healthy jobs accuse none; and who tests whom side by side."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lurcher.layout import Layout
from lurcher.localize.links import Flow, Nodes, link_suspects, rings_of
from lurcher.records import Component
from lurcher.validate.rounds import rounds_of


def flows_of(layout: Layout, nodes: Nodes, slow: dict[Component, float], noise: float, seed: int) -> list[Flow]:
    """All that passes between ranks: as slow as the slowest link it needs, and 2 % or so of noise."""
    rng = np.random.default_rng(seed)
    rings = rings_of(layout)
    passing = [(group.kind, rings[group.id]) for group in layout.groups() if group.kind in ("tp", "dp")]
    for replica in layout.replicas:
        for one, other in zip(replica.stages, replica.stages[1:], strict=False):
            passing += [("pp", (min(ends), max(ends))) for ends in zip(one.ranks, other.ranks, strict=True)]
    found = []
    for kind, ranks in passing:
        links = nodes.around(ranks)
        factor = max([slow.get(link, 1.0) for link in links])
        found.append(Flow(kind, ranks, links, factor * (1 + noise * float(rng.standard_normal())), noise))
    return found


def grid(tp: int, pp: int, dp: int) -> Layout:
    return Layout.uniform(tp=tp, pp=pp, dp=dp, num_layers=8, num_microbatches=8 * dp)


GRIDS = st.builds(grid, st.sampled_from([1, 2]), st.integers(1, 4), st.integers(1, 6))


@settings(max_examples=150, deadline=None)
@given(GRIDS, st.integers(1, 4), st.floats(1.3, 8.0), st.integers(0, 10**6))
def test_the_slow_link_is_named_and_whoever_else_is_cannot_be_told_from_it(layout: Layout, per_node: int, factor: float, seed: int) -> None:
    nodes = Nodes({rank: rank // per_node for rank in layout.ranks})
    used = sorted({link for flow in flows_of(layout, nodes, {}, 0.0, 0) for link in flow.links}, key=lambda link: link.ranks)
    assume(used)
    slow = used[seed % len(used)]
    flows = flows_of(layout, nodes, {slow: factor}, 0.02, seed)
    found = link_suspects(flows, 0.02, 1.10)
    crossing = [flow for flow in flows if slow in flow.links]
    assert slow in [s.component for s in found]
    for suspicion in found:
        assert all(suspicion.component in flow.links for flow in crossing), "another link that the same transfers need"
        assert suspicion.cause == "communication" and 0 < suspicion.confidence <= 0.8 / len(found)
        assert suspicion.slowdown == pytest.approx(factor, rel=0.15)


@settings(max_examples=100, deadline=None)
@given(GRIDS, st.integers(1, 4), st.integers(0, 10**6))
def test_a_healthy_job_accuses_no_link(layout: Layout, per_node: int, seed: int) -> None:
    nodes = Nodes({rank: rank // per_node for rank in layout.ranks})
    assert link_suspects(flows_of(layout, nodes, {}, 0.02, seed), 0.02, 1.10) == ()


TWO_NODES = Nodes({0: 0, 1: 0, 2: 1, 3: 1})
ACROSS = TWO_NODES.between(0, 2)


def flow(ratio: float, ranks: tuple[int, ...], *, noise: float = 0.02, share: float = 1.0) -> Flow:
    return Flow("dp", ranks, TWO_NODES.around(ranks), ratio, noise, share)


def test_a_link_between_nodes_is_one_whoever_uses_it() -> None:
    assert ACROSS == TWO_NODES.between(3, 1) == Component("link", "node0-node1", (0, 2))
    assert TWO_NODES.between(3, 2) == Component("link", "2-3", (2, 3))
    assert TWO_NODES.joins_nodes(ACROSS) and TWO_NODES.ends(ACROSS) == (0, 1) and TWO_NODES.ends(TWO_NODES.between(2, 3)) == (2, 3)
    (found,) = link_suspects([flow(4.0, (0, 2)), flow(3.9, (1, 3))], 0.02, 1.10)
    assert found.component == ACROSS and any("1 more that need link node0-node1" in line for line in found.evidence)


def test_a_link_ends_at_ranks_that_are_there() -> None:
    without = TWO_NODES.among([0, 1, 3])
    assert without.between(0, 3).ranks == (0, 3) and without.between(0, 3).id == ACROSS.id
    assert without.among([0, 1, 2, 3]).between(1, 2).ranks == (0, 3), "whoever comes back changes nothing"
    assert TWO_NODES.among([0, 2]) is TWO_NODES and without.among([0, 1]).between(0, 1).ranks == (0, 1)


def test_what_crosses_a_link_and_is_as_usual_acquits_it() -> None:
    assert link_suspects([flow(4.0, (0, 2)), flow(1.0, (1, 3))], 0.02, 1.10) == ()


def test_what_scatters_much_or_costs_nothing_accuses_nobody() -> None:
    assert link_suspects([flow(2.0, (0, 2), noise=0.5)], 0.02, 1.10) == ()
    assert link_suspects([flow(4.0, (0, 2), share=0.01)], 0.02, 1.10) == ()
    assert link_suspects([], 0.02, 1.10) == ()


def test_two_slow_links_are_both_named() -> None:
    nodes = Nodes({rank: rank for rank in range(8)})
    layout = grid(1, 2, 4)
    slow = {nodes.between(0, 1): 3.0, nodes.between(4, 5): 2.0}
    found = [s.component for s in link_suspects(flows_of(layout, nodes, slow, 0.02, 1), 0.02, 1.10)]
    assert found == list(slow)


@settings(max_examples=200, deadline=None)
@given(st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda pair: pair[0] < pair[1]), max_size=20))
def test_rounds_have_every_pair_once_and_no_rank_twice(pairs: set[tuple[int, int]]) -> None:
    rounds = rounds_of(pairs)
    assert sorted(pair for one in rounds for pair in one) == sorted(pairs)
    for one in rounds:
        ranks = [rank for pair in one for rank in pair]
        assert len(ranks) == len(set(ranks))
    degree = max((sum(rank in pair for pair in pairs) for rank in range(10)), default=0)
    assert len(rounds) <= max(0, 2 * degree - 1)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 9, 64, 65])
def test_a_ring_takes_two_rounds_or_three(size: int) -> None:
    ring = {(min(a, b), max(a, b)) for a, b in ((rank, (rank + 1) % size) for rank in range(size))}
    assert len(rounds_of(ring)) == (1 if size == 2 else 2 + size % 2)
