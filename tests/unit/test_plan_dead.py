"""Dead ranks, standby ranks, recovered ranks, and the restart."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from planning import assert_sound, rates

from lurcher.layout import Layout
from lurcher.model.price import price
from lurcher.model.rates import LinkRate
from lurcher.plan.dead import propose_without_dead
from lurcher.plan.moves import SwitchCosts
from lurcher.plan.readmission import propose_readmission
from lurcher.plan.restart import ill_nodes, propose_restart
from lurcher.plan.situation import Situation, assess
from lurcher.plan.standby import propose_standby


def job(**changed: object) -> Situation:
    """TP4 PP2 DP3, 24 micro-batches, a node a stage."""
    layout = Layout.uniform(tp=4, pp=2, dp=3, num_layers=8, num_microbatches=24)
    standby = changed.pop("standby", ())
    known = Layout(layout.num_layers, layout.num_microbatches, layout.replicas, standby)  # type: ignore[arg-type]
    return assess(known, rates(ranks_per_node=4, **changed), num_atoms=12, spare_nodes=1)


def test_a_dead_rank_leaves_a_smaller_group() -> None:
    situation = job(dead=(5,))
    assert math.isinf(situation.present_s)
    plan = propose_without_dead(situation)[0]
    assert plan.layout.replicas[0].stages[1].ranks == (4, 6, 7)
    assert plan.layout.standby == (5,)
    assert plan.layout.split[0] < min(plan.layout.split[1:])
    assert "where the present layout cannot run" in plan.reason


def test_every_way_on_without_a_stage_is_priced() -> None:
    situation = job(dead=(4, 5, 6, 7))
    plans = propose_without_dead(situation)
    for plan in plans:
        assert_sound(plan, situation)
    shorter = [plan for plan in plans if len(plan.layout.replicas[0].stages) == 1 and len(plan.layout.replicas) == 3]
    fewer = [plan for plan in plans if len(plan.layout.replicas) == 2]
    routed = [plan for plan in plans if plan.layout.routes]
    assert shorter and fewer and routed
    assert plans[0] in shorter  # four devices of the replica go on with work of their own
    assert {route.microbatch for route in routed[0].layout.routes} == set(routed[0].layout.microbatches_of(0))
    assert fewer[0].layout.standby == tuple(range(8))


def test_memory_rules_out_the_shorter_pipeline() -> None:
    """A stage of 4 layers on 4 ranks takes 1 GB a rank; all 8 layers take 2 GB and do not fit into 1.5."""
    plans = propose_without_dead(job(dead=(4, 5, 6, 7), device_bytes=1.5e9))
    assert plans and all(len(plan.layout.replicas[0].stages) == 2 for plan in plans)


def test_all_ranks_of_all_replicas_of_a_stage_dead_leave_the_shorter_pipeline_only() -> None:
    situation = job(dead=(4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23))
    plans = propose_without_dead(situation)
    assert plans and all(len(replica.stages) == 1 for plan in plans for replica in plan.layout.replicas)
    assert all("from the checkpoint" in plan.reason for plan in plans)


def test_a_second_stage_dies_after_the_first_was_routed_away() -> None:
    """Replica 0 has no stage 1 any more; now the stage of replica 1 that took its micro-batches dies too, and then one of its own mates."""
    routed = next(plan for plan in propose_without_dead(job(dead=(4, 5, 6, 7))) if plan.layout.routes).layout
    for dead in ((12, 13, 14, 15), (1,), (20, 21)):
        situation = assess(routed, rates(ranks_per_node=4, dead=(4, 5, 6, 7, *dead)), num_atoms=12)
        plans = propose_without_dead(situation)
        assert plans
        for plan in plans:
            assert_sound(plan, situation)


def test_everyone_dead_leaves_nothing() -> None:
    assert propose_without_dead(job(dead=tuple(range(24)))) == ()


def test_standby_ranks_take_the_place_of_dead_ones_and_of_slow_ones() -> None:
    dead = propose_standby(job(dead=(4, 5, 6, 7), standby=tuple(range(24, 28))))[0]
    assert dead.layout.replicas[0].stages[1].ranks == (24, 25, 26, 27)
    assert dead.predicted_s == price(Layout.uniform(tp=4, pp=2, dp=3, num_layers=8, num_microbatches=24), rates(ranks_per_node=4)).iteration_s
    slow = job(slowdown={5: 3.0}, standby=tuple(range(24, 28)))
    assert propose_standby(slow) == ()  # no cause named
    compute = assess(slow.layout, slow.rates, causes=("compute",), num_atoms=12)
    assert propose_standby(compute)[0].layout.standby == (4, 5, 6, 7)


def test_a_standby_rank_of_the_same_node_joins_the_group() -> None:
    layout = Layout.uniform(tp=3, pp=1, dp=2, num_layers=4, num_microbatches=8)
    known = Layout(4, 8, layout.replicas, (6, 7))
    places = {0: 0, 1: 0, 2: 0, 6: 0, 3: 1, 4: 1, 5: 1, 7: 1}
    situation = assess(known, rates(places=places, slowdown={1: 3.0}), causes=("compute",), num_atoms=12)
    plan = propose_standby(situation)[0]
    assert plan.layout.replicas[0].stages[0].ranks == (0, 2, 6)
    assert plan.layout.standby == (1, 7)
    assert "rank 6 to replica 0 stage 0 in place of rank 1" in plan.reason


@pytest.mark.parametrize("which", range(3))
def test_what_was_left_out_comes_back_and_the_job_is_as_fast_as_before(which: int) -> None:
    plans = propose_without_dead(job(dead=(4, 5, 6, 7)))
    ways = [lambda p: len(p.layout.replicas) == 2, lambda p: bool(p.layout.routes), lambda p: len(p.layout.replicas[0].stages) == 1]
    reduced = next(plan for plan in plans if ways[which](plan)).layout
    situation = assess(reduced, rates(ranks_per_node=4), num_atoms=12)
    plan = propose_readmission(situation)[0]
    assert_sound(plan, situation)
    healthy = Layout.uniform(tp=4, pp=2, dp=3, num_layers=8, num_microbatches=24)
    assert plan.predicted_s <= price(healthy, rates(ranks_per_node=4)).iteration_s * (1 + 1e-9)
    assert not plan.layout.routes


def test_a_restart_costs_the_checkpoint_and_cures_all() -> None:
    situation = job(slowdown={5: 2.0}, links=(LinkRate(1, 3, 4.0),))
    asked = assess(
        situation.layout,
        situation.rates,
        causes=("compute", "communication"),
        spare_nodes=1,
        costs=SwitchCosts(start_s=60.0, checkpoint_bytes_per_s=1e9),
    )
    plan = propose_restart(asked)[0]
    assert plan.predicted_s == price(asked.layout, rates(ranks_per_node=4)).iteration_s
    assert plan.pause_s == 60.0 + 2 * 8.0
    assert plan.layout.replicas == asked.layout.replicas
    assert "in place of 1" in plan.reason
    assert propose_restart(situation) == ()  # no cause named


def test_a_restart_needs_enough_spare_nodes() -> None:
    two = job(dead=(5,), links=(LinkRate(2, 3, 4.0),))
    assert ill_nodes(two) == {1, 2}
    assert propose_restart(two) == ()
    one = propose_restart(job(dead=(5,)))[0]
    assert "from the last checkpoint" in one.reason


@pytest.mark.parametrize("seed", range(120))
def test_as_long_as_one_rank_lives_there_is_a_way_on(seed: int) -> None:
    """One loss after the other, each under the layout that an earlier one led to: replicas without any stage beside ones that lack some, routes, standby."""
    rng = random.Random(seed)
    tp, pp, dp = rng.choice(((2, 2, 2), (1, 2, 2), (2, 1, 2), (1, 1, 4), (1, 4, 2), (4, 1, 2), (1, 3, 3)))
    layout, left = Layout.uniform(tp=tp, pp=pp, dp=dp, num_layers=6, num_microbatches=9), set(range(tp * pp * dp))
    while len(left) > 1:
        lost = rng.sample(sorted(left), rng.randint(1, len(left) - 1))
        if set(lost).isdisjoint(layout.ranks):
            continue
        left -= set(lost)
        situation = assess(layout, rates(dead=tuple(lost), layer_bytes=0.0), num_atoms=4)
        plans = propose_without_dead(situation)
        assert plans, (layout, lost)
        for plan in plans:
            assert left.issuperset(plan.layout.ranks) and plan.layout.num_microbatches == 9
        layout = rng.choice(plans).layout
        layout = msgspec.structs.replace(layout, standby=tuple(sorted(left - set(layout.ranks))))
