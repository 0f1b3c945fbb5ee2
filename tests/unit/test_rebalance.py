"""Plans of the split, judged by a made-up job that the planner never reads: it must be faster there, too."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from test_cost import Job, layout_of, trained

from lurcher.layout import Layout
from lurcher.model.cost import CostModel
from lurcher.plan.rebalance import REBALANCE_CAUSES, accept, propose_split
from lurcher.records import Plan


@cache
def fitted() -> tuple[CostModel, Layout, float]:
    """A model that has seen a healthy job, its layout and its healthy iteration in seconds."""
    layout, job = layout_of(32), Job(20)
    model = trained(job, layout)
    return model, layout, truth_s(layout, {})


def truth_s(layout: Layout, slow: dict[int, float]) -> float:
    """What iterations of the made-up job take in truth; the same twelve iterations each time."""
    job = Job(20)
    return float(np.mean([job.run(layout, slow)[2] for _ in range(12)]))


def plan_for(slow: dict[int, float], layout: Layout | None = None, cause: str = "compute", pause_s: float = 0.5) -> Plan:
    model, healthy, healthy_s = fitted()
    job = Job(20)
    workload = np.concatenate([job.run(healthy)[0] for _ in range(12)])
    return propose_split(layout or healthy, model, workload, slow, healthy_s, pause_s, cause)  # type: ignore[arg-type]


@pytest.mark.parametrize("slow", [{0: 1.6}, {1: 2.5}, {6: 1.6}, {0: 1.4, 3: 2.0}])
def test_the_proposed_split_is_faster_in_truth_and_as_fast_as_predicted(slow: dict[int, float]) -> None:
    _, layout, _ = fitted()
    plan = plan_for(slow)
    before_s, after_s = truth_s(layout, slow), truth_s(plan.layout, slow)
    assert after_s < before_s / 1.05  # small: the other stage is the heavier one here, and hides part of the slowness
    assert plan.predicted_s == pytest.approx(after_s, rel=0.03)
    assert plan.gain == pytest.approx(before_s / after_s, rel=0.03)
    assert plan.bound_s <= plan.predicted_s * 1.001
    assert plan.layout.generation == layout.generation + 1 and plan.actions[0].kind == "split"
    neighbours = [layout.with_split((m, 32 - m)) for m in range(plan.layout.split[0] - 2, plan.layout.split[0] + 3)]
    assert after_s <= 1.005 * min(truth_s(other, slow) for other in neighbours)


def test_the_reason_names_the_move_and_its_figures() -> None:
    plan = plan_for({0: 1.6})
    count = 16 - plan.layout.split[0]
    assert plan.reason.startswith(f"move {count} micro-batches from replica 0 to replica 1 (16/16 -> {16 - count}/{16 + count}): predicted ")
    assert f"{plan.predicted_s:.3f} s instead of {plan.present_s:.3f} s" in plan.reason and f"{plan.bound_s:.3f} s" in plan.reason


def test_a_healthy_job_keeps_its_split_and_a_healed_one_goes_back() -> None:
    _, layout, _ = fitted()
    kept = plan_for({})
    assert kept.gain < 1.03 and not accept(kept, 1.03, 1000)[0]
    back = plan_for({}, layout.with_split((11, 21)))
    assert all(abs(m - 16) <= 1 for m in back.layout.split) and back.gain > 1.1


def test_equal_slowness_everywhere_leaves_nothing_to_gain() -> None:
    plan = plan_for(dict.fromkeys(range(8), 1.7))
    assert plan.gain < 1.03


@pytest.mark.parametrize("cause", ["communication", "unknown", "workload"])
def test_other_causes_keep_the_layout_and_say_why(cause: str) -> None:
    assert cause not in REBALANCE_CAUSES
    plan = plan_for({0: 3.0}, cause=cause)
    assert plan.actions[0].kind == "keep" and plan.predicted_s == plan.present_s and plan.pause_s == 0.0
    assert cause in plan.reason
    assert accept(plan, 1.0, 1e9) == (False, plan.reason)


def test_a_plan_must_gain_enough_and_earn_its_pause_back() -> None:
    plan = plan_for({0: 1.6}, pause_s=2.0)
    saved_s = plan.present_s - plan.predicted_s
    assert accept(plan, plan.gain + 0.01, 1e6)[1].startswith("refused: a predicted gain")
    assert accept(plan, 1.03, 1.9 / saved_s)[1].startswith("refused: over")
    accepted, reason = accept(plan, 1.03, 2.1 / saved_s)
    assert accepted and reason.startswith("accepted") and plan.reason in reason


def test_a_model_that_has_seen_little_proposes_nothing() -> None:
    layout, job = layout_of(32), Job(24)
    plan = propose_split(layout, trained(job, layout, 2), job.workload(32), {0: 2.0}, 1.25, 0.5)
    assert plan.actions[0].kind == "keep" and plan.present_s == 1.25 and "too few healthy iterations" in plan.reason


def test_many_replicas_are_summed_up_in_words() -> None:
    layout, job = layout_of(96, tp=1, pp=2, dp=12), Job(23)
    model = trained(job, layout, 6)
    workload = job.workload(96)
    workload["num_tokens"], workload["sum_len_sq"] = 1500, 300_000
    plan = propose_split(layout, model, workload, {0: 2.5}, 1.0, 0.5)
    assert "(8 to 8 on 12 replicas -> " in plan.reason and "from replica 0 to replicas " in plan.reason


def test_is_deterministic() -> None:
    assert plan_for({0: 1.6}) == plan_for({0: 1.6})
