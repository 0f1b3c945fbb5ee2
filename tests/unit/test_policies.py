"""Each policy's levels and planner, and what it does first, second, and back, with a job on paper."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from tests.unit.paper_job import NUM_ATOMS, PaperJob, drive
from tests.unit.test_coordinator import decisions

from lurcher.config import DetectSection, PlanSection
from lurcher.control.coordinator import Coordinator
from lurcher.control.exclusion import propose_exclusion
from lurcher.control.orders import Outbox
from lurcher.control.planners import priced
from lurcher.control.policies import LEVELS, POLICIES, REBALANCE, RELAYOUT, RESTART
from lurcher.layout import Layout
from lurcher.model.price import price
from lurcher.model.rates import Rates
from lurcher.plan.membership import power_of_two
from lurcher.plan.problem import Problem
from lurcher.records import Action, Plan

GRID = Layout.uniform(tp=2, pp=2, dp=2, num_layers=4, num_microbatches=32)
WIDE = Layout.uniform(tp=4, pp=1, dp=2, num_layers=4, num_microbatches=32)
DEEP = Layout.uniform(tp=1, pp=4, dp=2, num_layers=4, num_microbatches=32)


def problem(layout: Layout, slowdown: dict[int, float]) -> Problem:
    rates = Rates(forward_s=0.02, backward_s=0.04, head_layers=0.1, launch_s=1e-3, overhead_s=0.02, slowdown=slowdown, ranks_per_node=8)
    return Problem(layout=layout, rates=rates, causes=("compute",), num_atoms=8)


def at_home(name: str) -> Callable[[Problem], tuple[Plan, ...]]:
    """The policy's planner without routed layouts, which the job on paper can only estimate."""
    return lambda asked: tuple(plan for plan in POLICIES[name].plan(asked) if not plan.layout.routes)


def run(name: str, job: PaperJob, num_iterations: int, **more: object) -> tuple[Coordinator, list[Outbox]]:
    return drive(job, num_iterations, PlanSection(policy=name), at_home(name), num_atoms=NUM_ATOMS, **more)  # type: ignore[arg-type]


def kinds(coordinator: Coordinator) -> list[set[str]]:
    return [{action.kind for action in done.plan.actions} for done in coordinator.reconfigurations]


def outcomes(coordinator: Coordinator) -> list[str]:
    return [done.outcome for done in coordinator.reconfigurations]


# The table


def test_levels_stand_in_order_and_only_known_ones_are_carried_out() -> None:
    for policy in POLICIES.values():
        assert list(policy.levels) == sorted(policy.levels, key=LEVELS.index)
        assert policy.carried_out <= set(policy.levels) - {RESTART}
    assert {name for name, policy in POLICIES.items() if RELAYOUT in policy.carried_out} == {"greyhound", "resihp", "joint"}


@pytest.mark.parametrize(
    ("kinds_", "levels"),
    [
        (("split",), {"greyhound": REBALANCE, "joint": REBALANCE, "resihp": RELAYOUT}),
        (("tensor", "split"), {"greyhound": RELAYOUT, "joint": RELAYOUT, "resihp": RELAYOUT}),
        (("restart",), {"greyhound": RESTART, "joint": RESTART, "resihp": ""}),
        (("keep",), {"greyhound": "", "joint": "", "resihp": ""}),
    ],
)
def test_a_plan_belongs_to_the_level_of_its_dearest_action_or_the_next_that_there_is(kinds_: tuple[str, ...], levels: dict[str, str]) -> None:
    actions = tuple(Action(kind, kind) for kind in kinds_)  # type: ignore[arg-type]
    assert {name: POLICIES[name].level_of(Plan(GRID, actions, 1.0, 0.5, 0.4, 0.1, 0, "")) for name in levels} == levels


ALLOWED = {
    "greyhound": {"keep", "split", "swap", "consolidate", "restart"},
    "resihp": {"keep", "tensor", "standby", "relayer", "migrate", "split"},
}


@pytest.mark.parametrize("name", ALLOWED)
@pytest.mark.parametrize(("layout", "slowdown"), [(GRID, {5: 2.0}), (WIDE, {1: 4.0}), (DEEP, {1: 2.0, 6: 2.0}), (GRID, {0: 1.3, 5: 3.0})])
def test_a_planner_stays_within_its_policy_and_below_the_present_time(name: str, layout: Layout, slowdown: dict[int, float]) -> None:
    asked = problem(layout, slowdown)
    plans = POLICIES[name].plan(asked)
    assert {action.kind for plan in plans for action in plan.actions} <= ALLOWED[name]
    present_s = price(layout, asked.rates).iteration_s
    healthy = Rates(**{field: getattr(asked.rates, field) for field in asked.rates.__struct_fields__} | {"slowdown": {}})
    for plan in plans:
        restarted = plan.actions[0].kind == "restart"
        assert plan.predicted_s == pytest.approx(price(plan.layout, healthy if restarted else asked.rates).iteration_s)
        assert plan.predicted_s <= present_s and plan.bound_s <= plan.predicted_s
    assert sum(plan.actions[0].kind == "keep" for plan in plans) == 1


def test_resihp_takes_tensor_groups_then_layers_then_micro_batches() -> None:
    """Rank 1 of a group of four is four times slower: two of four are faster than all; then the slow replica gives micro-batches away."""
    layout = Layout.uniform(tp=4, pp=2, dp=2, num_layers=8, num_microbatches=32)
    plans = POLICIES["resihp"].plan(problem(layout, {1: 4.0}))
    best = min((plan for plan in plans if not plan.layout.routes), key=lambda plan: plan.predicted_s)
    order = [action.kind for action in best.actions]
    assert order == sorted(order, key=["tensor", "relayer", "split"].index) and order[0] == "tensor"
    stage = best.layout.replicas[0].stages[0]
    assert stage.ranks == (0, 2) and set(stage.shares) == {1}, "a power of two, shared equally"
    assert best.layout.standby == (1, 3)
    steps = {plan.actions[:k] for plan in plans for k in range(1, len(plan.actions) + 1)}
    assert all(best.actions[:k] in steps for k in range(1, len(order) + 1)), "what each step came to is there too"


@pytest.mark.parametrize("slowdowns", [{1: 4.0}, {1: 1.5}, {0: 3.0, 2: 3.0}, {0: 9.0, 1: 9.0, 2: 9.0}])
def test_exclusion_is_the_published_rule(slowdowns: dict[int, float]) -> None:
    speeds = [1 / slowdowns.get(rank, 1.0) for rank in range(4)]
    expected = power_of_two(speeds)
    plans = propose_exclusion(priced(problem(WIDE, slowdowns)))
    stage = plans[0].layout.replicas[0].stages[0] if plans else WIDE.replicas[0].stages[0]
    assert stage.ranks == expected
    # An oracle of its own: k times the slowest of the k fastest, over powers of two.
    ranked = sorted(speeds, reverse=True)
    assert len(stage.ranks) == max((1, 2, 4), key=lambda k: (k * ranked[k - 1], k))


def test_a_rank_that_stands_by_on_the_node_takes_the_place_of_a_slow_one() -> None:
    stages = WIDE.replicas[0].stages[0]
    two = Layout(4, 32, (type(WIDE.replicas[0])((type(stages)((0, 1), (1, 1), stages.chunks),), 16), WIDE.replicas[1]), standby=(2, 3))
    (plan,) = propose_exclusion(priced(problem(two, {1: 4.0, 3: 2.0})))
    assert plan.layout.replicas[0].stages[0].ranks == (0, 2) and plan.layout.standby == (1, 3)
    assert plan.actions[0].kind == "standby" and "rank 2" in plan.actions[0].text


def test_greyhound_proposes_a_restart_whether_or_not_a_node_is_known() -> None:
    plans = POLICIES["greyhound"].plan(problem(GRID, {5: 2.0}))
    assert "restart" in {plan.actions[0].kind for plan in plans}


# On paper


def test_greyhound_moves_micro_batches_first_and_brings_stragglers_together_next() -> None:
    coordinator, said = run("greyhound", PaperJob(DEEP, [(1, 2.0, 25, 70), (6, 2.0, 25, 70)]), 95)
    tried = [d.reason.split(":")[0] for d in decisions(said, "ladder")]
    assert tried[:2] == [REBALANCE, RELAYOUT]
    assert kinds(coordinator)[0] == {"consolidate", "split"}, "no split helps where both replicas are slow"
    assert outcomes(coordinator) == ["applied", "reverted"] and coordinator.mitigation.home.replicas == DEEP.replicas
    layout = coordinator.reconfigurations[0].plan.layout
    (slow,) = {layout.position(rank).dp for rank in (1, 6)}
    assert layout.split[slow] < 16
    assert len(coordinator.episodes) == 1 and coordinator.episodes[0].end is not None, "the change itself is no event"


def test_greyhound_with_one_slow_rank_only_moves_micro_batches_and_writes_the_restart_down() -> None:
    coordinator, _ = run("greyhound", PaperJob(GRID, [(5, 2.5, 25, 2000)]), 60)
    assert kinds(coordinator) == [{"split"}]
    assert RESTART in [level.name for level in coordinator.mitigation.levels]
    coordinator.mitigation.charge(1000.0)
    out = coordinator.step(60.0, PaperJob(GRID, [(5, 2.5, 25, 2000)]).step(60, coordinator.reconfigurations[-1].plan.layout))
    assert any(d.reason.startswith("not carried out, as plan.policy is greyhound: restart") for d in out.decisions) and out.layout is None


def test_resihp_waits_for_its_planner_and_then_changes_the_layout_at_once() -> None:
    job = PaperJob(WIDE, [(1, 4.0, 25, 70)])
    coordinator, said = run("resihp", job, 110, thinks=6)
    first = coordinator.reconfigurations[0]
    assert {"tensor"} <= kinds(coordinator)[0] and outcomes(coordinator) == ["applied", "reverted"]
    assert first.plan.layout.standby == (1, 3)
    proven = next(d.iteration for d in decisions(said, "finding"))
    assert proven + 6 <= first.iteration <= proven + 10
    assert not [d for d in decisions(said, "ladder") if d.iteration < proven + 6], "nothing is said before there is a level"


def test_joint_moves_micro_batches_first_and_all_the_rest_next() -> None:
    coordinator, _ = run("joint", PaperJob(GRID, [(5, 2.0, 25, 70)]), 100)
    first, second, *_ = kinds(coordinator)
    assert first == {"split"} and second - {"split"}
    assert outcomes(coordinator)[-1] == "reverted" and coordinator.mitigation.home.replicas == GRID.replicas


@pytest.mark.parametrize(("name", "layout"), [("greyhound", DEEP), ("resihp", GRID), ("joint", GRID)])
def test_a_second_fault_twenty_iterations_after_a_change_is_found_and_acted_on(name: str, layout: Layout) -> None:
    begin = 65
    coordinator, said = run(name, PaperJob(layout, [(5, 2.0, 25, 500), (2, 2.0, begin, 500)]), begin + 30)
    before = [done.iteration for done in coordinator.reconfigurations if done.iteration < begin]
    assert before and begin - before[-1] >= 20
    assert [e.ranks for e in coordinator.episodes] == [{5}, {2}], "two events: nothing is made of the change itself"
    assert [d.iteration for d in decisions(said, "suspicion")] == [30, coordinator.episodes[1].detected]
    assert abs(coordinator.episodes[1].onset - begin) <= 1 and coordinator.episodes[1].detected - begin <= 8
    acted = [done for done in coordinator.reconfigurations if done.iteration > begin]
    assert acted and acted[-1].plan.predicted_s < acted[0].plan.present_s


@pytest.mark.parametrize("after", [0, 2, 4])
def test_a_second_fault_right_after_a_change_is_not_taken_for_its_effect(after: int) -> None:
    """The detector learns the level anew in just those iterations."""
    begin = 34 + after
    coordinator, _ = run("greyhound", PaperJob(GRID, [(5, 2.0, 25, 500), (2, 2.0, begin, 500)]), begin + 20)
    assert coordinator.reconfigurations[0].iteration == 34
    assert [e.ranks for e in coordinator.episodes] == [{5}, {2}]
    assert coordinator.episodes[1].detected - begin <= 8


@pytest.mark.parametrize("name", ["greyhound", "joint"])
def test_ranks_in_new_roles_are_not_taken_for_slow(name: str) -> None:
    """The last stage has a head, worth a fifth of a layer: who gets it needs longer than it ever did, and is healthy."""
    coordinator, said = run(name, PaperJob(DEEP, [(1, 2.0, 25, 200), (6, 2.0, 25, 200)]), 80)
    assert {rank for e in coordinator.episodes for rank in e.ranks} == {1, 6}
    named = {d.value["component"]["ranks"][0] for d in decisions(said, "suspicion")}
    assert named == {1, 6}
    changed = max(done.iteration for done in coordinator.reconfigurations)
    tail = [s.duration_s for s in coordinator.view.history if s.iteration > changed + 5]
    assert sum(tail) / len(tail) == pytest.approx(coordinator.reconfigurations[-1].plan.predicted_s, rel=0.05)


@pytest.mark.parametrize("name", ["greyhound", "resihp", "joint"])
def test_flapping_costs_few_changes(name: str) -> None:
    """On and off every 15 iterations: the change back waits until staying has cost as much as going and coming again, and for the cool-down."""
    faults = [(5, 2.0, begin, begin + 15) for begin in range(25, 145, 30)]
    coordinator, _ = run(name, PaperJob(GRID, faults), 150)
    times = [done.iteration for done in coordinator.reconfigurations]
    assert len(times) <= 3 * len(faults)
    assert min((b - a for a, b in pairwise(times)), default=99) >= PlanSection().cooldown_iterations - 1
    samples = [s for s in coordinator.view.history if s.iteration >= 25]
    treated = sum(s.duration_s - s.healthy_s for s in samples)
    untreated, _ = run("observe", PaperJob(GRID, faults), 150)
    assert treated < sum(s.duration_s - s.healthy_s for s in untreated.view.history if s.iteration >= 25)


# Deaths, and ranks that come back


def test_the_second_death_on_a_node_uses_the_rank_that_stands_by() -> None:
    job = PaperJob(WIDE, [(1, 4.0, 25, 500)])
    coordinator, said = run("resihp", job, 70, deaths={50: (2,)})
    first, death, *_ = coordinator.reconfigurations
    assert first.plan.layout.replicas[0].stages[0].ranks == (0, 2) and first.plan.layout.standby == (1, 3)
    assert set(death.plan.layout.replicas[0].stages[0].ranks) == {0, 3} and death.plan.layout.standby == (1,)
    assert not [d for d in decisions(said, "finding") if d.iteration > 50 and d.value["proven"] and d.value["component"]["ranks"] != (1,)]


def test_after_a_death_the_model_learns_the_layout_that_is_left_and_finds_the_next_fault() -> None:
    job = PaperJob(DEEP, [(1, 2.0, 65, 200)])
    coordinator, said = run("joint", job, 85, deaths={35: (5,)})
    assert coordinator.view.model.expected_s(coordinator.mitigation.home, job.step(120, coordinator.mitigation.home).workload) > 0
    assert [e.ranks for e in coordinator.episodes] == [{1}]
    before = [s for s in coordinator.view.history if 45 <= s.iteration < 65]
    assert sum(s.duration_s for s in before) == pytest.approx(sum(s.healthy_s for s in before), rel=0.02)
    assert not [d for d in decisions(said, "suspicion") if d.iteration < 65]


@pytest.mark.parametrize("name", ["rebalance", "greyhound", "resihp", "joint"])
def test_a_rank_that_comes_back_is_tested_and_then_works_again(name: str) -> None:
    coordinator, said = run(name, PaperJob(GRID), 75, deaths={30: (5,)}, returns={50: (5,)})
    tested = [out for out in said if out.bench and 5 in out.bench]
    assert len(tested) == 2, "the baseline, and the return"
    lost, back = coordinator.reconfigurations
    assert 5 not in lost.plan.layout.ranks and 5 in back.plan.layout.ranks and back.outcome == "applied"
    assert 50 < back.iteration < 65 and coordinator.mitigation.home.replicas == back.plan.layout.replicas
    assert coordinator.episodes == [] and coordinator.state == "observe"


def test_observe_recommends_work_for_a_rank_that_comes_back_and_gives_none() -> None:
    coordinator, said = run("observe", PaperJob(GRID), 70, deaths={30: (5,)}, returns={50: (5,)})
    assert len(coordinator.reconfigurations) == 1
    assert any("back to" in d.reason for d in decisions(said, "plan"))


def test_a_rank_that_comes_back_slow_gets_no_work() -> None:
    coordinator, said = run("joint", PaperJob(GRID, [(5, 3.0, 45, 500)]), 100, deaths={30: (5,)}, returns={50: (5,)})
    assert len(coordinator.reconfigurations) == 1 and coordinator.episodes == []
    tested = [out for out in said if out.bench and 5 in out.bench]
    assert 3 <= len(tested) <= 5, "asked again, but seldom"


def test_a_rank_that_recovers_after_a_death_gets_work_again() -> None:
    job = PaperJob(WIDE, [(1, 4.0, 25, 70)])
    coordinator, _ = run("resihp", job, 120, deaths={50: (2,)})
    assert 1 in coordinator.mitigation.home.ranks and not coordinator.watchlist


def test_an_order_that_never_comes_is_given_up_and_made_anew() -> None:
    """The supervisor drops an order that names a rank which was lost on the way, and tells of the loss; here it drops one without a word."""
    job = PaperJob(GRID, [(5, 2.5, 25, 200)])
    whole, _ = run("joint", job, 60)
    first = whole.reconfigurations[0].iteration
    dropped = False
    coordinator = Coordinator(DetectSection(), PlanSection(policy="joint"), GRID, "1f1b", emulated=True)
    layout, out = GRID, Outbox()
    for iteration in range(first + 20):
        border, out = out, coordinator.step(float(iteration), job.step(iteration, layout))
        if border.bench:
            coordinator.step(float(iteration), job.benchmark(border.bench, iteration))
        if border.layout is not None:
            layout, dropped = (border.layout, dropped) if dropped else (layout, True)
    assert dropped and layout.split != GRID.split, "ordered a second time"


# Routed layouts


def test_a_routed_layout_is_predicted_raises_no_alarm_and_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever `is_adoptable` says today: micro-batches of a slow stage run in the other replica."""
    monkeypatch.setattr("lurcher.control.advice.is_adoptable", lambda layout: True)

    def routed_only(asked: Problem) -> tuple[Plan, ...]:
        return tuple(plan for plan in POLICIES["resihp"].plan(asked) if plan.layout.routes)

    job = PaperJob(DEEP, [(1, 2.0, 25, 60)])
    coordinator, _ = drive(job, 85, PlanSection(policy="resihp"), routed_only, num_atoms=NUM_ATOMS)
    assert outcomes(coordinator) == ["applied", "reverted"] and coordinator.reconfigurations[0].plan.layout.routes
    assert [e.ranks for e in coordinator.episodes] == [{1}]
    done = coordinator.reconfigurations[0]
    there = [s.duration_s for s in coordinator.view.history if done.iteration < s.iteration < 60]
    assert sum(there) / len(there) == pytest.approx(done.plan.predicted_s, rel=0.06)


def test_a_second_fault_under_a_routed_layout_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lurcher.control.advice.is_adoptable", lambda layout: True)
    job = PaperJob(DEEP, [(1, 2.0, 25, 500), (6, 2.0, 60, 500)])
    coordinator, _ = drive(job, 80, PlanSection(policy="resihp"), POLICIES["resihp"].plan, num_atoms=NUM_ATOMS)
    assert coordinator.reconfigurations[0].plan.layout.routes
    assert [e.ranks for e in coordinator.episodes] == [{1}, {6}] and coordinator.episodes[1].detected - 60 <= 8
