"""What the coordinator does about proven faults, and what it writes down beyond that."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import msgspec
import pytest
from tests.unit.paper_job import PaperJob, drive

from lurcher.config import PlanSection
from lurcher.control.advice import best_of_levels
from lurcher.control.coordinator import Coordinator
from lurcher.control.measured import measured_rates
from lurcher.control.orders import Outbox, PlanReport
from lurcher.control.policies import POLICIES
from lurcher.layout import Layout, Replica, Stage
from lurcher.model.price import price
from lurcher.plan.joint import plan_all
from lurcher.plan.problem import Problem
from lurcher.records import Action, Decision, Plan

GRID = Layout.uniform(tp=2, pp=2, dp=2, num_layers=4, num_microbatches=32)


def plan_of(problem: Problem, kinds: tuple[str, ...], predicted: float, pause_s: float) -> Plan:
    """A plan with these actions, `predicted` times the present iteration."""
    present_s = price(problem.layout, problem.rates).iteration_s
    actions = tuple(Action(kind, f"a {kind}") for kind in kinds)  # type: ignore[arg-type]
    return Plan(problem.layout, actions, present_s, predicted * present_s, 0.0, pause_s, 7, f"{'+'.join(kinds)} is better")


def planner(relayout_s: float = 3.0, restart_s: float = 500.0) -> Callable[[Problem], tuple[Plan, ...]]:
    def plan(problem: Problem) -> tuple[Plan, ...]:
        return (
            plan_of(problem, ("tensor", "split"), 0.6, relayout_s),
            plan_of(problem, ("relayer",), 0.65, relayout_s),
            plan_of(problem, ("restart",), 0.55, restart_s),
            plan_of(problem, ("split",), 0.8, 0.05),
            plan_of(problem, ("keep",), 1.0, 0.0),
        )

    return plan


@pytest.fixture(scope="module")
def mitigated() -> tuple[Coordinator, Problem]:
    """A job whose rank 5 is slow and whose split has been changed, and the question that its planner has not answered."""
    coordinator, said = drive(PaperJob(GRID, [(5, 2.5, 25, 200)]), 60)
    (problem,) = [out.problem for out in said if out.problem is not None]
    return coordinator, problem


def decisions(said: list[Outbox], kind: str) -> list[Decision]:
    return [d for out in said for d in out.decisions if d.kind == kind]


def beyond(said: list[Outbox]) -> list[Decision]:
    return [d for d in decisions(said, "plan") if d.reason.startswith("not carried out")]


def test_what_the_runtime_cannot_do_is_written_down_when_its_turn_comes() -> None:
    coordinator, said = drive(PaperJob(GRID, [(5, 2.5, 25, 200)]), 110, planner=planner())
    assert [r.outcome for r in coordinator.reconfigurations] == ["applied"], "only the micro-batches were moved"
    (recorded,) = beyond(said)
    assert "relayout, tensor+split is better" in recorded.reason and recorded.value["predicted_s"] > 0
    (done,) = coordinator.reconfigurations
    assert recorded.iteration >= done.iteration + PlanSection().cooldown_iterations - 1, "dearer levels come after the cheaper ones"
    asked = [out.problem for out in said if out.problem is not None]
    assert len(asked) == 1 and asked[0].rates.slowdown.keys() == {5} and asked[0].causes == ("compute",)
    assert [level.name for level in coordinator.mitigation.levels] == ["rebalance", "relayout", "restart"]


def test_a_slow_planner_holds_nothing_up(mitigated: tuple[Coordinator, Problem]) -> None:
    slow, _ = drive(PaperJob(GRID, [(5, 2.5, 25, 200)]), 60, planner=planner(), thinks=15)
    without, _ = mitigated
    assert [(r.iteration, r.plan.layout.split) for r in slow.reconfigurations] == [
        (r.iteration, r.plan.layout.split) for r in without.reconfigurations
    ]


def test_a_dear_level_waits_for_a_loss_like_its_price() -> None:
    found = {}
    for relayout_s in (2.0, 400.0):
        _, said = drive(PaperJob(GRID, [(5, 2.5, 25, 200)]), 50, planner=planner(relayout_s=relayout_s, restart_s=900.0))
        found[relayout_s] = [d.value["pause_s"] for d in beyond(said)]
    assert found == {2.0: [2.0], 400.0: []}


def test_the_planner_itself_is_asked_with_measured_rates() -> None:
    """With the real planner: the same split as the live one, and more beyond it, against its bound."""
    coordinator, said = drive(PaperJob(GRID, [(5, 2.5, 25, 200)]), 70, planner=plan_all)
    (recorded,) = beyond(said)
    (done,) = coordinator.reconfigurations
    assert recorded.value["bound_s"] <= recorded.value["predicted_s"] < done.plan.predicted_s
    (problem,) = [out.problem for out in said if out.problem is not None]
    split = best_of_levels(plan_all(problem), problem.layout, POLICIES["rebalance"], 1.03)["rebalance"]
    assert max(abs(a - b) for a, b in zip(split.layout.split, done.plan.layout.split, strict=True)) <= 1
    assert split.predicted_s == pytest.approx(done.plan.predicted_s, rel=0.03)


def test_an_answer_to_faults_that_have_changed_is_dropped(mitigated: tuple[Coordinator, Problem]) -> None:
    coordinator, problem = copy.deepcopy(mitigated)
    other = Problem(layout=problem.layout.with_split((15, 17)), rates=problem.rates)
    assert coordinator.step(60.0, PlanReport(60, other, planner()(problem), 0.1)).decisions == ()
    assert len(coordinator.mitigation.levels) == 1
    (said,) = coordinator.step(60.0, PlanReport(60, problem, planner()(problem), 0.25)).decisions
    assert "planned in 0.250 s beside the training for rank 5" in said.reason and "restart to" in said.reason
    assert len(coordinator.mitigation.levels) == 3


def test_a_planner_that_fails_is_a_note(mitigated: tuple[Coordinator, Problem]) -> None:
    coordinator, problem = copy.deepcopy(mitigated)
    out = coordinator.step(60.0, PlanReport(60, problem, (), 0.1, failed="the planner failed (ZeroDivisionError: no)"))
    assert [d.kind for d in out.decisions] == ["note"] and "ZeroDivisionError" in out.decisions[0].reason


def test_the_pause_of_the_proof_is_part_of_the_price(mitigated: tuple[Coordinator, Problem]) -> None:
    coordinator, problem = copy.deepcopy(mitigated)
    coordinator.step(60.0, PlanReport(60, problem, planner()(problem), 0.1))
    # On paper a benchmark pauses for 0.15 s and a change of the split for 0.01 s.
    assert coordinator.mitigation.levels[0].cost_s == pytest.approx(0.16)


def test_ended_episodes_are_learned_and_move_the_thresholds() -> None:
    """Faults that turn out to end soon: the next one's dear level waits longer than the first one's."""
    job = PaperJob(GRID, [(5, 2.5, 25, 55), (5, 2.5, 90, 300)])
    coordinator, said = drive(job, 130, planner=planner(relayout_s=20.0))
    ended, _ = coordinator.episodes
    samples = [s.duration_s for s in coordinator.view.history if ended.onset <= s.iteration <= (ended.end or 0)]
    assert ended.lasted_s == pytest.approx(sum(samples), rel=0.05) and ended.causes == ("compute",)
    first, second = [out.problem for out in said if out.problem is not None]
    assert second.remaining_iterations < first.remaining_iterations
    factors = []
    for episodes in (0, 60):
        coordinator.mitigation.learn(["compute"] * episodes, 45.0)
        coordinator.step(130.0, PlanReport(130, second, planner(relayout_s=20.0)(second), 0.1))
        factors.append({level.name: level.at_s / level.cost_s for level in coordinator.mitigation.levels})
    assert factors[1]["relayout"] > factors[0]["relayout"]
    rho = PlanSection().rho
    assert all(1 / (rho - 1) - 1e-9 <= factor <= rho - 1 + 1e-9 for found in factors for factor in found.values())


def test_rho_2_is_break_even() -> None:
    coordinator, _ = drive(PaperJob(GRID, [(5, 2.5, 25, 200)]), 45, PlanSection(rho=2.0), planner=planner())
    assert len(coordinator.mitigation.levels) == 3 and all(level.threshold_s is None for level in coordinator.mitigation.levels)


def test_a_milder_fault_brings_the_split_nearer_to_the_healthy_one() -> None:
    coordinator, _ = drive(PaperJob(GRID, [(5, 2.5, 25, 60), (5, 1.25, 60, 300)]), 120)
    splits = [r.plan.layout.split for r in coordinator.reconfigurations]
    assert len(splits) >= 2 and abs(splits[-1][0] - splits[-1][1]) < abs(splits[0][0] - splits[0][1])
    assert coordinator.watchlist, "the rank is still slow"


@pytest.mark.parametrize(("tp", "pp", "dp"), [(2, 2, 2), (1, 4, 2), (4, 1, 2), (2, 1, 4)])
def test_measured_rates_price_like_the_model_they_come_from(tp: int, pp: int, dp: int) -> None:
    layout = Layout.uniform(tp=tp, pp=pp, dp=dp, num_layers=4, num_microbatches=32)
    coordinator, _ = drive(PaperJob(layout), 30)
    view = coordinator.view
    for slowdown in ({}, {5: 1.8}):
        rates = measured_rates(view.model, layout, view.recent_workload(), slowdown)
        assert price(layout, rates).iteration_s == pytest.approx(view.mean_expected_s(layout, slowdown), rel=0.02)
        assert rates.head_layers == pytest.approx(0.2 if pp > 1 else 0.0, abs=0.05) and rates.embed_layers < 0.05
        assert rates.backward_s == pytest.approx(2 * rates.forward_s, rel=0.05)


def test_plans_are_sorted_into_levels_by_their_dearest_action(mitigated: tuple[Coordinator, Problem]) -> None:
    plans = planner()(mitigated[1])
    assert [POLICIES["joint"].level_of(plan) for plan in plans] == ["relayout", "relayout", "restart", "rebalance", ""]
    best = best_of_levels(plans, GRID, POLICIES["joint"], 1.03)
    assert best["relayout"] is plans[0] and set(best) == {"rebalance", "relayout", "restart"}
    assert set(best_of_levels(plans, GRID, POLICIES["joint"], 1.2)) == {"rebalance", "relayout"}, (
        "a restart is not worth its price beside the relayout"
    )


def test_of_plans_that_are_about_as_fast_the_one_that_moves_least_is_taken() -> None:
    first, second = GRID.replicas[0].stages
    uneven = msgspec.structs.replace(second, shares=(3, 1))

    def plan(predicted_s: float, *changed: Stage) -> Plan:
        stages = (changed[0] if changed else first, changed[1] if len(changed) > 1 else second)
        layout = msgspec.structs.replace(GRID, replicas=(Replica(stages, 16), GRID.replicas[1]), generation=1)
        return Plan(layout, (Action("tensor", "shares"),), 2.0, predicted_s, 0.5, 0.1, 0, "")

    other = msgspec.structs.replace(first, shares=(2, 1))
    much, little = plan(1.0, other, uneven), plan(1.004, first, uneven)
    assert best_of_levels([much, little], GRID, POLICIES["joint"], 1.03) == {"relayout": little}
    assert best_of_levels([much, plan(1.02, first, uneven)], GRID, POLICIES["joint"], 1.03) == {"relayout": much}
    assert best_of_levels([plan(1.99)], GRID, POLICIES["joint"], 1.03) == {}, "hardly faster than the present layout"


def test_with_the_joint_policy_layers_and_ranks_move_too_and_come_back() -> None:
    coordinator, _ = drive(PaperJob(GRID, [(5, 2.5, 25, 110)]), 160, PlanSection(policy="joint"), plan_all)
    split, relayout, back = coordinator.mitigation.done
    assert {a.kind for a in split.plan.actions} == {"split"}
    assert {a.kind for a in relayout.plan.actions} - {"split"} and relayout.plan.predicted_s < split.plan.predicted_s
    assert relayout.plan.layout.standby == (5,)  # what has no work can only be tested
    assert back.outcome == "reverted" and back.plan.layout.replicas == GRID.replicas
    (episode,) = coordinator.episodes
    assert episode.end is not None and 90 <= episode.end <= 112


def test_recovery_of_a_rank_on_standby_is_tested_seldom() -> None:
    _, said = drive(PaperJob(GRID, [(5, 2.5, 25, 110)]), 110, PlanSection(policy="joint"), plan_all)
    tested = [d.iteration for d in decisions(said, "finding") if d.iteration > 40]
    assert len(tested) == 3 and min(b - a for a, b in itertools.pairwise(tested)) >= 20
