"""Micro-batches of single stages run elsewhere: our moves against brute force, Algorithm 1 against its known faults."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning import rates

from lurcher.layout import Layout
from lurcher.model.price import price, price_many
from lurcher.plan.migration import algorithm_1, propose_migration, published
from lurcher.plan.resplit import propose_resplit
from lurcher.plan.routing import with_routes
from lurcher.plan.situation import Situation, assess


def one_slow_stage(speed: float, replicas: int, schedule: str = "zb_h1") -> Situation:
    """4 stages of 4 layers, 16 micro-batches a replica, one rank a stage, one slow; split backward."""
    layout = Layout.uniform(tp=1, pp=4, dp=replicas, num_layers=16, num_microbatches=16 * replicas)
    given_rates = rates(ranks_per_node=1, forward_s=0.01, backward_s=0.01, weight_s=0.01, slowdown={1: 1 / speed})
    return assess(layout, given_rates, causes=("compute",), schedule=schedule)


@pytest.mark.parametrize("schedule", ["zb_h1", "1f1b"])
@pytest.mark.parametrize(("speed", "replicas"), [(0.8, 4), (0.5, 4), (0.3, 4), (0.5, 2)])
def test_moves_chosen_by_price_beat_algorithm_1_and_the_split(speed: float, replicas: int, schedule: str) -> None:
    situation = one_slow_stage(speed, replicas, schedule)
    found = propose_migration(situation)[0].predicted_s
    variants = [published(situation, delta, credited=credited) for delta in (0, 1, 2, 4) for credited in (False, True)]
    prices = price_many([candidate.layout for candidate in variants], situation.rates, schedule)
    assert found <= min(one.iteration_s for one in prices) * (1 + 1e-9)
    assert found <= propose_resplit(situation)[0].predicted_s * (1 + 1e-9)
    assert found < situation.present_s


def test_algorithm_1_without_credit_makes_mild_slowness_worse() -> None:
    situation = one_slow_stage(0.8, 4)
    greedy = published(situation, 0).layout
    careful = published(situation, 2, credited=True).layout
    assert price(greedy, situation.rates, "zb_h1").iteration_s > situation.present_s
    assert len(careful.routes) < len(greedy.routes)
    assert price(careful, situation.rates, "zb_h1").iteration_s < situation.present_s


def test_moves_from_one_stage_equal_brute_force_over_their_number() -> None:
    """With the present split only: no other number of evenly spaced micro-batches is better."""
    for speed, replicas in ((0.7, 2), (0.5, 3), (0.4, 4)):
        situation = one_slow_stage(speed, replicas, "1f1b")
        layout = situation.layout
        routed = [with_routes(layout, layout.replicas, {(0, 1): n}, [1.0] * replicas) for n in range(17)]
        best_s = min(one.iteration_s for one in price_many([one for one in routed if one is not None], situation.rates, "1f1b"))
        assert propose_migration(situation)[0].predicted_s <= best_s * (1 + 1e-9)


@given(
    st.lists(st.lists(st.floats(0.1, 5), min_size=3, max_size=6), min_size=2, max_size=4),
    st.integers(0, 3),
    st.booleans(),
    st.integers(-1, 3),
)
def test_algorithm_1_moves_each_micro_batch_once_and_never_to_itself(gaps: list[list[float]], delta: int, credited: bool, stopped: int) -> None:
    ends_s = [np.full(len(g), np.inf) if d == stopped else np.cumsum(g) for d, g in enumerate(gaps)]
    moves = algorithm_1(ends_s, delta, credited=credited)
    assert len({(d, j) for d, j, _ in moves}) == len(moves)
    for d, j, target in moves:
        assert target != d and target != stopped and 0 <= j < len(ends_s[d])
    if 0 <= stopped < len(gaps):
        assert {j for d, j, _ in moves if d == stopped} == set(range(len(gaps[stopped])))


def test_algorithm_1_on_a_small_case_by_hand() -> None:
    """Two replicas, 4 micro-batches; the slow one needs twice as long. delta 0, credited: at t=1 P = (0, 1), the first of the slow one moves."""
    ends_s = [np.array([2.0, 4.0, 6.0, 8.0]), np.array([1.0, 2.0, 3.0, 4.0])]
    assert algorithm_1(ends_s, 0, credited=True)[0] == (0, 0, 1)
    assert algorithm_1(ends_s, 4) == ()
    assert [j for _, j, _ in algorithm_1(ends_s, 0)] == [0, 1, 2, 3]  # not credited: the slow one loses all it has


def test_routed_micro_batches_are_evenly_spaced_and_dealt_by_speed() -> None:
    layout = Layout.uniform(tp=1, pp=2, dp=3, num_layers=4, num_microbatches=24)
    routed = with_routes(layout, layout.replicas, {(1, 0): 4}, [1.0, 1.0, 0.5])
    assert routed is not None
    assert [route.microbatch for route in routed.routes] == [9, 11, 13, 15]
    assert [route.replica for route in routed.routes].count(0) == 3
    assert with_routes(layout, layout.replicas, {(0, 0): 1, (1, 0): 1, (2, 0): 1}, [1.0] * 3) is None
