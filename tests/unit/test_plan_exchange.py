"""Node swaps and consolidation against brute force over all ways to place the ranks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from planning import rates

from lurcher.layout import Layout
from lurcher.model.rates import LinkRate
from lurcher.plan.consolidate import gathered, propose_consolidation
from lurcher.plan.edit import exchanged
from lurcher.plan.exchange import climb, priced
from lurcher.plan.nodes import relation, representatives, roles
from lurcher.plan.placement import propose_swap
from lurcher.plan.resplit import best_splits
from lurcher.plan.situation import Situation, assess


def every_placement(layout: Layout) -> list[Layout]:
    ranks = layout.ranks
    return [exchanged(layout, dict(zip(ranks, order, strict=True))) for order in itertools.permutations(ranks)]


def best_s(situation: Situation, layouts: list[Layout], *, split: bool) -> float:
    if split:
        layouts = [layout.with_split(counts) for layout, counts in zip(layouts, best_splits(situation, layouts), strict=True)]
    return min(priced(situation, layouts))


def test_node_swaps_equal_brute_force_over_all_placements() -> None:
    rng = np.random.default_rng(41)
    for case in range(40):
        pp, dp = ((2, 2), (1, 4), (4, 1), (2, 2), (1, 3))[case % 5]
        layout = Layout.uniform(tp=1, pp=pp, dp=dp, num_layers=2 * pp, num_microbatches=4 * dp)
        pairs = [sorted(int(n) for n in rng.choice(pp * dp, 2, replace=False)) for _ in range(int(rng.integers(1, 4)))]
        links = tuple(LinkRate(a, b, float(rng.uniform(1.5, 10))) for a, b in pairs)
        given = rates(ranks_per_node=1, links=links, hop_bytes=5e7, sync_bytes_per_layer=2e9, head_layers=float(rng.choice([0, 1])))
        situation = assess(layout, given, causes=("communication",))
        plans = propose_swap(situation)
        found_s = plans[0].predicted_s if plans else situation.present_s
        assert found_s == pytest.approx(best_s(situation, every_placement(layout), split=False), rel=1e-9), links


def test_consolidation_equals_brute_force_over_all_placements_with_their_best_splits() -> None:
    rng = np.random.default_rng(42)
    for case in range(24):
        dp, pp = ((2, 2), (4, 1), (2, 2), (3, 1))[case % 4]
        layout = Layout.uniform(tp=1, pp=pp, dp=dp, num_layers=2 * pp, num_microbatches=6 * dp)
        slow = {int(r): float(rng.uniform(1.2, 3)) for r in rng.choice(dp * pp, int(rng.integers(1, 4)), replace=False)}
        given = rates(ranks_per_node=1, slowdown=slow, head_layers=float(rng.choice([0, 1])))
        situation = assess(layout, given, causes=("compute",))
        plans = propose_consolidation(situation)
        present_s = best_s(situation, [layout], split=True)
        found_s = min([present_s, *(plan.predicted_s for plan in plans)])
        assert found_s == pytest.approx(best_s(situation, every_placement(layout), split=True), rel=1e-9), slow


def test_a_slow_link_between_replicas_carries_activations_afterwards() -> None:
    """Nodes 0 and 2 hold the same stage of replicas next in the ring: gigabytes of gradients. After the swap it is activations or nothing."""
    layout = Layout.uniform(tp=2, pp=2, dp=4, num_layers=8, num_microbatches=32)
    given = rates(links=(LinkRate(0, 2, 5.0),), hop_bytes=5e7, sync_bytes_per_layer=2e9)
    plan = propose_swap(assess(layout, given, causes=("communication",)))[0]
    does = roles(plan.layout, given)
    gradients, _ = relation(does[0], does[2], 4)
    assert not gradients
    assert plan.predicted_s < plan.present_s / 2
    assert "takes the place of node" in plan.reason
    assert all(stage.ranks[0] // 2 == stage.ranks[1] // 2 for _, _, stage in plan.layout.stages())  # groups stay on their nodes


def test_a_slow_link_between_two_ranks_is_moved_too() -> None:
    layout = Layout.uniform(tp=1, pp=2, dp=2, num_layers=4, num_microbatches=8)
    given = rates(ranks_per_node=4, links=(LinkRate(0, 2, 50.0, "rank"),), hop_bytes=1e6, sync_bytes_per_layer=2e10)
    plan = propose_swap(assess(layout, given, causes=("communication",)))[0]
    assert plan.layout.replicas != layout.replicas
    assert plan.predicted_s < plan.present_s


def test_two_slow_replicas_become_one() -> None:
    """GREYHOUND's S3b: two slow stages in two replicas go into one, an interior one first, and it gets fewer micro-batches."""
    layout = Layout.uniform(tp=1, pp=4, dp=4, num_layers=16, num_microbatches=64)
    given = rates(ranks_per_node=1, slowdown={0: 2.0, 9: 2.0}, head_layers=1.0, embed_layers=1.0)
    situation = assess(layout, given, causes=("compute",))
    plan = propose_consolidation(situation)[0]
    slow_at = [plan.layout.position(rank) for rank in (0, 9)]
    assert slow_at[0].dp == slow_at[1].dp
    assert {at.pp for at in slow_at} == {1, 2}
    assert plan.layout.split[slow_at[0].dp] == min(plan.layout.split)
    assert [action.kind for action in plan.actions] == ["consolidate", "split"]


def test_slow_ranks_of_a_node_share_a_group() -> None:
    layout = Layout.uniform(tp=2, pp=1, dp=2, num_layers=4, num_microbatches=12)
    situation = assess(layout, rates(ranks_per_node=4, slowdown={0: 2.0, 2: 2.0}), causes=("compute",))
    plan = propose_consolidation(situation)[0]
    assert plan.layout.position(0).dp == plan.layout.position(2).dp


def test_gathering_starts_where_most_slow_groups_are() -> None:
    layout = Layout.uniform(tp=1, pp=4, dp=3, num_layers=8, num_microbatches=12)
    situation = assess(layout, rates(ranks_per_node=1, slowdown={1: 2.0, 4: 2.0, 7: 2.0}), causes=("compute",))
    found = gathered(situation, layout)
    assert {found.position(rank).dp for rank in (1, 4, 7)} == {1}
    assert {1, 2} <= {found.position(rank).pp for rank in (1, 4, 7)}


def test_one_node_of_each_sort_is_enough() -> None:
    """Of 64 alike replicas a handful of nodes stands for all, and exchanging with any other brings nothing more."""
    layout = Layout.uniform(tp=2, pp=2, dp=16, num_layers=4, num_microbatches=32)
    given = rates(links=(LinkRate(0, 2, 5.0),), hop_bytes=5e7, sync_bytes_per_layer=2e9)
    some = list(representatives(layout, given, [0, 2]))
    assert len(some) < 16
    situation = assess(layout, given, causes=("communication",))
    every = [exchanged(layout, {2 * a: 2 * b, 2 * a + 1: 2 * b + 1, 2 * b: 2 * a, 2 * b + 1: 2 * a + 1}) for a in (0, 2) for b in range(32) if a != b]
    assert propose_swap(situation)[0].predicted_s <= min(priced(situation, every)) * (1 + 1e-9)


def test_climbing_stops_at_the_start_when_nothing_is_better() -> None:
    layout = Layout.uniform(tp=1, pp=2, dp=2, num_layers=4, num_microbatches=8)
    situation = assess(layout, rates(), causes=("compute",))
    assert climb(situation, layout, every_placement, pairs=True) is layout
