"""When to change the layout, to what, and back: the planner's proposal behind the ladder, one change in flight at a time.

What is carried out is moving micro-batches. What lies beyond that climbs the same ladder and is written down when its turn
comes, with its plan: what would have been done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from lurcher.config import PlanSection
from lurcher.control.advice import REBALANCE, RELAYOUT, Advice, Question, ask
from lurcher.control.orders import PlanReport, StepSummary
from lurcher.control.view import View
from lurcher.control.watchlist import Watchlist
from lurcher.layout import Layout
from lurcher.plan.bound import bound_s
from lurcher.plan.durations import Durations
from lurcher.plan.ladder import LadderState, Level, Lower, refuse
from lurcher.plan.ladder import step as ladder_step
from lurcher.plan.problem import Problem
from lurcher.plan.rebalance import accept, propose_split
from lurcher.records import Action, Cause, Plan, Reconfiguration

FIRST_PAUSE_S = 0.05
"""Assumed cost of a switch until one has been measured (a new split moves no state: one border without new groups)."""


class Order(NamedTuple):
    """What to do at the next border, what to plan beside the training, and what to write down: (kind, reason, value)."""

    layout: Layout | None
    said: list[tuple[str, str, Any]]
    problem: Problem | None = None


class Mitigation:
    """The layout in force, the one ordered, and what was done so far. `num_atoms`: parts of a layer that tensor ranks can share."""

    def __init__(self, plan: PlanSection, layout: Layout, schedule: str, num_atoms: int) -> None:
        self._config = plan
        self._schedule = schedule
        self._home = layout
        self._layout = layout
        self._num_atoms = num_atoms
        self._ordered: Plan | None = None
        self._ladder = LadderState()
        self._levels: tuple[Level, ...] = (Level(REBALANCE, FIRST_PAUSE_S),)
        self._advice: Advice | None = None
        self._known: dict[Cause, Durations] = {}
        self._cause: Cause = "compute"
        self._lost_before_s = 0.0
        self._slow_s = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._validation_s = 0.0
        self.done: tuple[Reconfiguration, ...] = ()
        self.proposed: tuple[Plan, ...] = ()

    @property
    def levels(self) -> tuple[Level, ...]:
        """The ladder for the present faults, or the last ones: costs as measured or planned, thresholds as learned."""
        return self._levels

    def charge(self, lost_s: float) -> None:
        """A fault was proven that has cost `lost_s` seconds so far: loss before the proof, the delay of detection, is loss too."""
        self._lost_before_s += lost_s

    def note_validation(self, pause_s: float) -> None:
        """A benchmark at a border paused the job for `pause_s` seconds: part of what acting costs."""
        self._validation_s = pause_s

    def learn(self, causes: Sequence[Cause], lasted_s: float) -> None:
        """An episode of these causes is over after `lasted_s` seconds: the next one is expected to be like it."""
        for cause in causes if lasted_s > 0 else ():
            self._known[cause] = self._durations(cause).after(lasted_s)

    def observe_layout(self, step: StepSummary) -> Reconfiguration | None:
        """Notice that an ordered layout is in force; returns what was carried out."""
        plan = self._ordered
        if plan is None or step.layout.generation != plan.layout.generation:
            return None
        self._ordered, self._layout = None, step.layout
        self._pause_s = max(step.pause_s, 1e-3)
        back = _same(step.layout, self._home)
        taken_back = "the split was taken back" if all(action.kind == "split" for action in plan.actions) else "the change was taken back"
        words = taken_back if back else f"done: {' and '.join(action.text for action in plan.actions)}"
        reason = f"{words}; generation {step.layout.generation} from iteration {step.iteration} on, after a pause of {step.pause_s:.3f} s"
        done = Reconfiguration(plan, step.layout.generation, step.iteration, step.pause_s, 0, "reverted" if back else "applied", reason)
        self.done += (done,)
        return done

    def rehome(self, done: Reconfiguration) -> None:
        """Ranks were lost: the layout that this led to is the healthy one from now on, and what was ordered before is void."""
        self._home = self._layout = done.plan.layout
        self._ordered, self._advice = None, None
        self._ladder = LadderState()
        self.done += (done,)

    def take(self, report: PlanReport) -> list[tuple[str, str, Any]]:
        """The planner's answer, which the ladder takes in from now on; one to faults that have changed since is dropped."""
        advice = self._advice
        if advice is None or report.problem != advice.problem:
            return []
        if report.failed:
            return [("note", f"no plan beyond moving micro-batches: {report.failed}", None)]
        self._advice = advice.answered(report, self._config.min_gain, adoptable_only=self._config.policy == "relayout")
        self._set_levels()
        found = [f"{name} to {plan.predicted_s:.3f} s an iteration for a pause of {plan.pause_s:.2f} s" for name, plan in self._advice.plans.items()]
        words = "; ".join(found) or "no other layout is predicted to be faster"
        return [("note", f"planned in {report.took_s:.3f} s beside the training for {self._ladder.fault}: {words}", None)]

    def consider(self, step: StepSummary, view: View, watchlist: Watchlist, causes: Sequence[Cause]) -> Order:
        """After one iteration: one step on the ladder, and the plan that it asks for. One change in flight at a time."""
        if self._ordered is not None:
            return Order(None, [])
        fault, before = watchlist.epoch, self._ladder
        self._slow_s = self._slow_s + step.duration_s if fault else 0.0
        problem = self._new_fault(view, watchlist, causes) if fault and fault != before.fault else None
        loss_s, self._lost_before_s = self._lost_before_s, 0.0
        if fault or before.changed:
            loss_s += max(0.0, step.duration_s - view.model.expected_s(self._home, step.workload))
        self._ladder, decision, reason = ladder_step(
            before,
            loss_s,
            self._levels,
            fault=fault,
            cooldown_iterations=self._config.cooldown_iterations,
            lower=self._way_back(step, view, watchlist),
        )
        said: list[tuple[str, str, Any]] = []
        # A hold is worth a line once per fault, and none after the change that the fault got.
        if decision.kind == "apply" or (decision.kind == "hold" and self._ladder.level == 0 and self._ladder.fault != before.fault):
            said.append(("ladder", reason, None))
        if decision.kind == "revert" and not _same(self._layout, self._home):
            return self._go_home(view, watchlist, reason)._replace(problem=problem)
        if decision.kind != "apply":
            return Order(None, said, problem)
        if decision.level == REBALANCE:
            return self._rebalance(before, view, watchlist, said)._replace(problem=problem)
        return self._beyond(before, decision.level, said)._replace(problem=problem)

    def _new_fault(self, view: View, watchlist: Watchlist, causes: Sequence[Cause]) -> Problem:
        """Another set of faults: ask the planner, and until it answers climb with what is known."""
        self._cause = causes[0] if causes else "compute"
        remaining_s = self._durations(self._cause).remaining_s(self._slow_s)
        question = Question(self._layout, self._home, self._schedule, causes or (self._cause,), self._num_atoms, self._pause_s, remaining_s)
        self._advice = ask(question, view, watchlist.slowdown)
        self._set_levels()
        return self._advice.problem

    def _set_levels(self) -> None:
        if self._advice is not None:
            cost_s = self._validation_s + self._pause_s
            self._levels = self._advice.levels(cost_s, self._durations(self._cause), self._config.rho)

    def _durations(self, cause: Cause) -> Durations:
        return self._known.get(cause) or Durations.of(cause)

    def _way_back(self, step: StepSummary, view: View, watchlist: Watchlist) -> Lower | None:
        """The healthy layout, where another is in force, and what it is predicted to save: observed times would sum up their noise."""
        if not self._ladder.changed:
            return None
        home_s, present_s = (view.model.expected_s(layout, step.workload, watchlist.slowdown) for layout in (self._home, self._layout))
        return Lower("the healthy layout", 0, present_s - home_s, self._pause_s)

    def _rebalance(self, before: LadderState, view: View, watchlist: Watchlist, said: list[tuple[str, str, Any]]) -> Order:
        plan = propose_split(self._layout, view.model, view.recent_workload(), watchlist.slowdown, view.healthy_s(), self._pause_s, cause=self._cause)
        remaining = self._durations(self._cause).remaining_s(self._slow_s) / view.healthy_s()
        good, verdict = accept(plan, self._config.min_gain, remaining)
        said.append(("plan", verdict, plan))
        if good:
            self.proposed += (plan,)
        if good and self._config.policy == "observe":
            said.append(("note", "plan.policy is observe: recommended, not carried out", None))
        if not good or self._config.policy == "observe":
            self._ladder = refuse(before, self._ladder)
            return Order(None, said)
        self._ordered = plan
        return Order(plan.layout, said)

    def _beyond(self, before: LadderState, level: str, said: list[tuple[str, str, Any]]) -> Order:
        """What the planner found: carried out if `plan.policy` lets more than micro-batches move, else what would have been done."""
        assert self._advice is not None
        plan = self._advice.plans[level]
        if self._config.policy == "relayout" and level == RELAYOUT:
            self._ordered = msgspec.structs.replace(plan, layout=_next(plan.layout, self._layout))
            said.append(("plan", f"accepted: {plan.reason}", self._ordered))
            self.proposed += (self._ordered,)
            return Order(self._ordered.layout, said)
        self._ladder = refuse(before, self._ladder)
        said.append(("plan", f"not carried out, as plan.policy is {self._config.policy}: {level}, {plan.reason}", plan))
        return Order(None, said)

    def _go_home(self, view: View, watchlist: Watchlist, why: str) -> Order:
        """Back to the layout that the job began with: no rank is slow any more, or not enough for another one."""
        home = _next(self._home, self._layout)
        present_s, predicted_s = (view.mean_expected_s(layout, watchlist.slowdown) for layout in (self._layout, home))
        only_split = _same(self._home, self._layout.with_split(self._home.split))
        words = f"back to {'/'.join(map(str, home.split))} micro-batches per replica{'' if only_split else ', and to the first layout of layers and ranks'}"
        reason = f"{why}; {words}: predicted {predicted_s:.3f} s an iteration instead of {present_s:.3f} s"
        floor_s = min(bound_s(view.healthy_s(), home, watchlist.slowdown), predicted_s)
        plan = Plan(home, (Action("split" if only_split else "relayer", words),), present_s, predicted_s, floor_s, self._pause_s, 0, reason)
        self._ordered = plan
        return Order(home, [("plan", reason, plan)])


def _same(one: Layout, other: Layout) -> bool:
    """Equal but for the generation."""
    return _next(one, other) == _next(other, other)


def _next(layout: Layout, present: Layout) -> Layout:
    """`layout` as the generation after the present one."""
    return msgspec.structs.replace(layout, generation=present.generation + 1)
