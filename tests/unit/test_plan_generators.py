"""All generators of plans together: sound, deterministic, never worse than the present layout, and only what the cause allows."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import assert_sound, random_situation, rates

from lurcher.layout import Layout
from lurcher.model.price import price
from lurcher.model.rates import LinkRate
from lurcher.plan.causes import CURES, answers
from lurcher.plan.consolidate import propose_consolidation
from lurcher.plan.dead import propose_without_dead
from lurcher.plan.layers import propose_layers
from lurcher.plan.membership import propose_membership
from lurcher.plan.migration import propose_migration
from lurcher.plan.placement import propose_swap
from lurcher.plan.readmission import propose_readmission
from lurcher.plan.resplit import propose_resplit
from lurcher.plan.restart import propose_restart
from lurcher.plan.shares import propose_shares
from lurcher.plan.situation import Situation, assess, keep
from lurcher.plan.standby import propose_standby
from lurcher.records import Plan

GENERATORS: tuple[Callable[[Situation], tuple[Plan, ...]], ...] = (
    propose_resplit,
    propose_layers,
    propose_membership,
    propose_shares,
    propose_migration,
    propose_swap,
    propose_consolidation,
    propose_standby,
    propose_readmission,
    propose_without_dead,
    propose_restart,
)


@pytest.mark.parametrize("propose", GENERATORS, ids=lambda propose: propose.__name__)
@given(seed=st.integers(0, 10**6), dead=st.booleans())
@settings(max_examples=25)
def test_every_plan_is_sound_and_the_same_twice(propose: Callable[[Situation], tuple[Plan, ...]], seed: int, dead: bool) -> None:
    situation = msgspec.structs.replace(random_situation(np.random.default_rng(seed), dead=dead), spare_nodes=3)
    plans = propose(situation)
    assert plans == propose(situation)
    assert [plan.predicted_s for plan in plans] == pytest.approx(sorted(plan.predicted_s for plan in plans))
    for plan in plans:
        assert_sound(plan, situation)
        if plan.actions[0].kind != "restart":
            assert plan.predicted_s == pytest.approx(price(plan.layout, situation.rates, situation.schedule).iteration_s, rel=1e-12)


@given(seed=st.integers(0, 10**6), first=st.integers(0, 99), healed=st.booleans())
@settings(max_examples=20)
def test_plans_on_top_of_plans_are_sound(seed: int, first: int, healed: bool) -> None:
    """From layouts that came out of planning: routes, empty stages, unequal shares and cuts, ranks on standby."""
    rng = np.random.default_rng(seed)
    before = random_situation(rng, dead=bool(rng.integers(2)))
    found = [plan for propose in GENERATORS for plan in propose(before)]
    if not found:
        return
    present = found[first % len(found)].layout
    other = random_situation(rng).rates
    faults = before.rates if not healed else rates(ranks_per_node=before.rates.ranks_per_node)
    slow = {rank: factor for rank, factor in other.slowdown.items() if rank in present.ranks}
    situation = assess(
        present,
        msgspec.structs.replace(faults, slowdown=slow),
        causes=("compute", "communication"),
        schedule=before.schedule,
        num_atoms=before.num_atoms,
    )
    for propose in GENERATORS:
        for plan in propose(situation):
            assert_sound(plan, situation)


def test_the_present_layout_is_a_plan_that_costs_nothing() -> None:
    situation = assess(Layout.uniform(tp=1, pp=2, dp=2, num_layers=4, num_microbatches=8), rates(), bound_s=1.0)
    plan = keep(situation, "nothing is slow")
    assert plan.layout is situation.layout
    assert (plan.predicted_s, plan.pause_s, plan.bytes_moved, plan.actions[0].kind) == (situation.present_s, 0.0, 0, "keep")
    assert plan.bound_s == min(1.0, situation.present_s)


def test_a_healthy_job_is_left_alone() -> None:
    layout = Layout.uniform(tp=2, pp=2, dp=2, num_layers=8, num_microbatches=16)
    situation = assess(layout, rates(), causes=("compute", "communication", "host", "stage_imbalance", "unknown"), spare_nodes=9)
    for propose in GENERATORS:
        assert propose(situation) == ()


def test_what_the_cause_rules_out_is_not_proposed() -> None:
    layout = Layout.uniform(tp=2, pp=2, dp=4, num_layers=8, num_microbatches=16)
    both = rates(slowdown={0: 2.0}, links=(LinkRate(0, 2, 5.0),), sync_bytes_per_layer=1e7)
    compute, link = (assess(layout, both, causes=(cause,)) for cause in ("compute", "communication"))
    assert {action.kind for propose in GENERATORS for plan in propose(compute) for action in plan.actions} >= {
        "split",
        "relayer",
        "tensor",
        "migrate",
    }
    assert not any(action.kind == "swap" for propose in GENERATORS for plan in propose(compute) for action in plan.actions)
    kinds = {action.kind for propose in GENERATORS for plan in propose(link) for action in plan.actions}
    assert "swap" in kinds
    assert kinds <= {"swap", "consolidate"}


@pytest.mark.parametrize("cause", ["input", "workload", "sequence_imbalance"])
def test_no_layout_answers_a_cause_outside_the_devices(cause: str) -> None:
    assert not any(answers(kind, [cause]) for kind in CURES)  # type: ignore[list-item]
    layout = Layout.uniform(tp=2, pp=2, dp=2, num_layers=8, num_microbatches=16)
    situation = assess(layout, rates(slowdown={0: 2.0}), causes=(cause,), spare_nodes=1)  # type: ignore[arg-type]
    assert [propose(situation) for propose in GENERATORS] == [()] * len(GENERATORS)


def test_a_plan_that_does_not_fit_into_memory_is_no_plan() -> None:
    layout = Layout.uniform(tp=1, pp=2, dp=1, num_layers=8, num_microbatches=8)
    slow = {"slowdown": {0: 3.0}, "ranks_per_node": 1}
    free = propose_layers(assess(layout, rates(**slow), causes=("compute",)))[0]
    assert [stage.num_layers for stage in free.layout.replicas[0].stages] == [2, 6]
    tight = propose_layers(assess(layout, rates(**slow, device_bytes=5e9), causes=("compute",)))[0]
    assert [stage.num_layers for stage in tight.layout.replicas[0].stages] == [3, 5]
    assert propose_layers(assess(layout, rates(**slow, device_bytes=4e9), causes=("compute",))) == ()
