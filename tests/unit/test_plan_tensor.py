"""Who goes on in a tensor group and with how many atoms, against brute force over all members and all ways to share."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning import rates

from lurcher.layout import Layout, Stage
from lurcher.model.price import price_many
from lurcher.plan.edit import with_stages
from lurcher.plan.membership import any_degree, power_of_two, propose_membership
from lurcher.plan.shares import best_shares, propose_shares
from lurcher.plan.situation import assess
from lurcher.plan.tensor_group import DegreeCosts, Members, group_time

SPEEDS = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.6, 0.9, 1.0]), min_size=1, max_size=4)
COSTS = DegreeCosts((1.0, 0.98, 0.95, 0.9), (0.0, 0.01, 0.012, 0.015))


def every_group(speeds: list[float], num_atoms: int, most: int) -> list[Members]:
    alive = [i for i, speed in enumerate(speeds) if speed > 0]
    return [
        Members(ranks, atoms)
        for k in range(1, len(alive) + 1)
        for ranks in itertools.combinations(alive, k)
        for atoms in itertools.product(range(1, most + 1), repeat=k)
        if sum(atoms) == num_atoms
    ]


@given(SPEEDS, st.integers(1, 8), st.integers(1, 8))
def test_shares_equal_brute_force(speeds: list[float], num_atoms: int, most: int) -> None:
    groups = every_group(speeds, num_atoms, min(most, num_atoms))
    found = best_shares(speeds, num_atoms, most, COSTS)
    if not groups:
        assert found == Members()
        return
    assert found in groups
    assert group_time(speeds, found, COSTS) == pytest.approx(min(group_time(speeds, group, COSTS) for group in groups), rel=1e-12)


@given(SPEEDS, st.integers(1, 8), st.integers(1, 8))
def test_any_degree_equals_brute_force_over_even_groups(speeds: list[float], num_atoms: int, most: int) -> None:
    groups = [group for group in every_group(speeds, num_atoms, min(most, num_atoms)) if max(group.atoms) - min(group.atoms) <= 1]
    found = any_degree(speeds, num_atoms, most, COSTS)
    if not groups:
        assert found == Members()
        return
    assert found in groups
    assert group_time(speeds, found, COSTS) == pytest.approx(min(group_time(speeds, group, COSTS) for group in groups), rel=1e-12)


@given(SPEEDS, st.integers(1, 4))
def test_powers_of_two_equal_the_published_rule_by_brute_force(speeds: list[float], least: int) -> None:
    alive = [i for i, speed in enumerate(speeds) if speed > 0]
    allowed = [ranks for k in (1, 2, 4) if k >= least for ranks in itertools.combinations(alive, k)]
    found = power_of_two(speeds, least)
    if not allowed:
        assert found == ()
        return
    assert found in allowed
    assert len(found) * min(speeds[i] for i in found) == max(len(ranks) * min(speeds[i] for i in ranks) for ranks in allowed)


@given(SPEEDS.filter(any), st.integers(1, 12), st.data())
def test_a_faster_rank_never_makes_the_group_slower(speeds: list[float], num_atoms: int, data: st.DataObject) -> None:
    faster = list(speeds)
    i = data.draw(st.integers(0, len(speeds) - 1))
    faster[i] = data.draw(st.floats(max(speeds[i], 0.05), 1.5))
    for choose in (best_shares, any_degree):
        before, after = (group_time(given, choose(given, num_atoms, num_atoms, COSTS), COSTS) for given in (speeds, faster))
        assert after <= before * (1 + 1e-9)


def test_the_published_rule_on_the_papers_cases() -> None:
    assert power_of_two([1, 1, 1, 0]) == (0, 1)  # TP4 with one dead goes on with two, one good device idle
    assert power_of_two([1, 1, 0.5, 1]) == (0, 1, 2, 3)  # a slow one leaves only below half the speed
    assert power_of_two([1, 1, 0.49, 1]) == (0, 1)
    assert power_of_two([1, 1, 1, 0], least=4) == ()


def test_a_slow_rank_keeps_fewer_atoms_and_its_mates_set_the_pace() -> None:
    found = best_shares([1, 1, 0.5, 1], 14, 14, DegreeCosts((1.0,) * 4, (0.0,) * 4))
    assert found == Members((0, 1, 2, 3), (4, 4, 2, 4))
    assert best_shares([1, 1, 1, 0], 8, 8, DegreeCosts((1.0,) * 4, (0.0,) * 4)).atoms == (3, 3, 2)


def test_ties_stay_near_the_present_atoms() -> None:
    free = DegreeCosts((1.0,) * 3, (0.0,) * 3)
    assert best_shares([1, 1, 1], 8, 8, free, (3, 2, 3)).atoms == (3, 2, 3)
    assert best_shares([1, 1, 1], 8, 8, free, (2, 3, 3)).atoms == (2, 3, 3)


def test_shares_equal_brute_force_with_the_price_of_real_layouts() -> None:
    rng = np.random.default_rng(21)
    for _ in range(40):
        tp = int(rng.integers(2, 5))
        layout = Layout.uniform(tp=tp, pp=2, dp=1, num_layers=4, num_microbatches=4)
        slow = {int(r): float(rng.uniform(1, 5)) for r in rng.choice(tp, int(rng.integers(1, tp)), replace=False)}
        given_rates = rates(ranks_per_node=tp, slowdown=slow, tp_efficiency=(1.0, 0.97, 0.95, 0.9), tp_bytes=float(rng.choice([0, 1e8])))
        situation = assess(layout, given_rates, causes=("compute",), num_atoms=6)
        plans = propose_shares(situation)
        found_s = plans[0].predicted_s if plans else situation.present_s
        stage = layout.replicas[0].stages[0]
        groups = every_group([1.0] * tp, 6, 6)
        layouts = [with_stages(layout, {(0, 0): Stage(tuple(stage.ranks[i] for i in g.ranks), g.atoms, stage.chunks)}) for g in groups]
        best_s = min(found.iteration_s for found in price_many(layouts, given_rates))
        assert found_s <= best_s * (1 + 1e-9) or found_s == pytest.approx(min(best_s, situation.present_s), rel=1e-9)


def test_shares_beat_leaving_and_any_degree_beats_powers_of_two() -> None:
    layout = Layout.uniform(tp=4, pp=2, dp=2, num_layers=8, num_microbatches=16)
    one_dead = assess(layout, rates(ranks_per_node=4, dead=(1,)), num_atoms=12)
    three, two = propose_membership(one_dead)
    assert [stage.tp_size for _, _, stage in three.layout.stages()].count(3) == 1 and three.layout.standby == (1,)
    assert [stage.tp_size for _, _, stage in two.layout.stages()].count(2) == 1 and len(two.layout.standby) == 2
    assert three.predicted_s < two.predicted_s
    one_slow = assess(layout, rates(ranks_per_node=4, slowdown={1: 2.0}), causes=("compute",), num_atoms=16)
    assert propose_shares(one_slow)[0].predicted_s < propose_membership(one_slow)[0].predicted_s
    assert "atoms" in propose_shares(one_slow)[0].reason
