"""When to change the layout, to what, and back: the planner's proposal behind the ladder, one change in flight at a time.

Which levels the ladder has and who plans them is the policy's (`control/policies.py`). A level that the policy does not carry out climbs the
same ladder and is written down when its turn comes, with its plan: what would have been done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from lurcher.config import PlanSection
from lurcher.control.advice import Advice, Question, ask
from lurcher.control.newcomers import Newcomers
from lurcher.control.orders import PlanReport, StepSummary
from lurcher.control.policies import POLICIES, REBALANCE
from lurcher.control.view import View, is_plain
from lurcher.control.watchlist import Watchlist
from lurcher.layout import Layout
from lurcher.model.program import ordered
from lurcher.plan.bound import bound_s
from lurcher.plan.durations import Durations
from lurcher.plan.ladder import LadderState, Level, Lower, refuse
from lurcher.plan.ladder import step as ladder_step
from lurcher.plan.moves import SwitchCosts
from lurcher.plan.problem import Problem
from lurcher.plan.rebalance import accept, propose_split
from lurcher.plan.words import rank_words
from lurcher.records import Action, Cause, Plan, Reconfiguration

FIRST_PAUSE_S = 0.05
"""Assumed cost of a switch until one has been measured (a new split moves no state: one border without new groups)."""


BORDERS = 2
"""An order is named at the border after the next iteration's, and in force one iteration later."""


LASTING_S = 36_000.0
"""How long the work of a rank that came back is taken to last."""


class Order(NamedTuple):
    """What to do at the next border, what to plan beside the training, and what to write down: (kind, reason, value)."""

    layout: Layout | None
    said: list[tuple[str, str, Any]]
    problem: Problem | None = None


class Mitigation:
    """The layout in force, the one ordered, and what was done so far. `num_atoms`: parts of a layer that tensor ranks can share."""

    def __init__(self, plan: PlanSection, layout: Layout, schedule: str, num_atoms: int) -> None:
        self._config = plan
        self._policy = POLICIES[plan.policy]
        self._schedule = schedule
        self._home = layout
        self._layout = layout
        self._num_atoms = num_atoms
        self._ordered: Plan | None = None
        self._ordered_at = -1
        self._returning: Advice | None = None
        self._ladder = LadderState()
        self._levels: tuple[Level, ...] = ()
        self._advice: Advice | None = None
        self._known: dict[Cause, Durations] = {}
        self._cause: Cause = "compute"
        self._lost_before_s = 0.0
        self._slow_s = 0.0
        self._costs = SwitchCosts(border_s=FIRST_PAUSE_S)
        self._validation_s = 0.0
        self._paid_s = 0.0
        self.done: tuple[Reconfiguration, ...] = ()
        self.proposed: tuple[Plan, ...] = ()

    @property
    def levels(self) -> tuple[Level, ...]:
        """The ladder for the present faults, or the last ones: costs as measured or planned, thresholds as learned."""
        return self._levels

    @property
    def home(self) -> Layout:
        """The healthy layout: the one that the job began with, or that it was left with when ranks were lost or came back."""
        return self._home

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

    def observe_layout(self, step: StepSummary) -> tuple[Reconfiguration | None, tuple[int, ...]]:
        """Notice what is in force: what was carried out of what was ordered, and the ranks that have come to the job."""
        joined = tuple(sorted(set(step.layout.members) - set(self._layout.members)))
        plan, before, self._layout = self._ordered, self._layout, step.layout
        if joined:
            self._home = msgspec.structs.replace(self._home, standby=tuple(sorted({*self._home.standby, *joined})))
        if plan is None:
            return None, joined
        if step.layout.generation == before.generation or not _same(step.layout, plan.layout):
            if step.iteration > self._ordered_at + BORDERS:
                self._give_up()
            return None, joined
        return self._in_force(plan, step), joined

    def _in_force(self, plan: Plan, step: StepSummary) -> Reconfiguration:
        self._ordered = None
        only_split = all(action.kind == "split" for action in plan.actions)
        which, pause_s = "border_s" if only_split else "regroup_s", max(step.pause_s, 1e-3)
        self._costs = msgspec.structs.replace(self._costs, **{which: pause_s})  # measured from now on
        if self._ladder.changed:
            self._paid_s = max(self._paid_s, self._validation_s + pause_s)
            self._ladder = msgspec.structs.replace(self._ladder, paid_s=self._paid_s)
        else:
            self._paid_s = 0.0
        if self._is_readmission(plan):
            self._home = step.layout
        back = _same(step.layout, self._home) and not self._is_readmission(plan)
        taken_back = "the split was taken back" if only_split else "the change was taken back"
        words = taken_back if back else f"done: {' and '.join(action.text for action in plan.actions)}"
        reason = f"{words}; generation {step.layout.generation} from iteration {step.iteration} on, after a pause of {step.pause_s:.3f} s"
        outcome: Literal["applied", "reverted"] = "reverted" if back else "applied"
        done = Reconfiguration(plan, step.layout.generation, step.iteration, step.pause_s, step.moved_bytes, outcome, reason)
        self.done += (done,)
        return done

    def _give_up(self) -> None:
        """What was ordered did not come, for a rank that it names was lost on the way: the ladder is climbed anew."""
        self._ordered = None
        self._ladder = LadderState(in_force=int(not _same(self._layout, self._home)))

    def rehome(self, done: Reconfiguration) -> None:
        """Ranks were lost: the layout that this led to is the healthy one from now on, and what was ordered before is void."""
        self._home = self._layout = done.plan.layout
        self._ordered, self._advice, self._returning = None, None, None
        self._ladder, self._paid_s = LadderState(), 0.0
        self.done += (done,)

    def take(self, report: PlanReport) -> list[tuple[str, str, Any]]:
        """The planner's answer, which the ladder takes in from now on; one to faults that have changed since is dropped."""
        if self._returning is not None and report.problem == self._returning.problem:
            self._returning = self._returning.answered(report, self._config.min_gain)
            return []
        advice = self._advice
        if advice is None or report.problem != advice.problem:
            return []
        if report.failed:
            return [("note", f"no plan beyond moving micro-batches: {report.failed}", None)]
        self._advice = advice.answered(report, self._config.min_gain)
        self._set_levels()
        found = [f"{name} to {plan.predicted_s:.3f} s an iteration for a pause of {plan.pause_s:.2f} s" for name, plan in self._advice.plans.items()]
        words = "; ".join(found) or "no other layout is predicted to be faster"
        return [("note", f"planned in {report.took_s:.3f} s beside the training for {self._ladder.fault}: {words}", None)]

    def consider(self, step: StepSummary, view: View, watchlist: Watchlist, causes: Sequence[Cause], newcomers: Newcomers) -> Order:
        """After one iteration: one step on the ladder, and the plan that it asks for; where nothing is wrong, work for ranks that came back.

        One change in flight at a time.
        """
        if self._ordered is not None:
            return Order(None, [])
        order = self._climb(step, view, watchlist, causes, newcomers)
        if order == Order(None, []) and not watchlist and not self._ladder.changed:
            order = self._readmit(view, newcomers)
        self._ordered_at = step.iteration
        return order

    def _climb(self, step: StepSummary, view: View, watchlist: Watchlist, causes: Sequence[Cause], newcomers: Newcomers) -> Order:
        fault, before = watchlist.epoch, self._ladder
        self._slow_s = self._slow_s + step.duration_s if fault else 0.0
        problem = self._new_fault(view, watchlist, causes, newcomers.untested) if fault and fault != before.fault else None
        loss_s, self._lost_before_s = self._lost_before_s, 0.0
        if fault or before.changed:
            loss_s += max(0.0, step.duration_s - view.expected_s(self._home, step.workload))
        self._ladder, decision, reason = ladder_step(
            before,
            loss_s,
            self._levels,
            fault=fault,
            cooldown_iterations=self._config.cooldown_iterations,
            lower=self._way_back(step, view, watchlist),
        )
        said: list[tuple[str, str, Any]] = []
        # A hold is worth a line once per fault, and none after the change that the fault got, nor before the planner's answer where all waits for it.
        worth_a_line = decision.kind == "apply" or (decision.kind == "hold" and self._ladder.level == 0 and self._ladder.fault != before.fault)
        if self._levels and worth_a_line:
            said.append(("ladder", reason, None))
        if decision.kind == "revert" and not _same(self._layout, self._home):
            return self._go_home(view, watchlist, reason)._replace(problem=problem)
        if decision.kind != "apply":
            return Order(None, said, problem)
        if decision.level == REBALANCE:
            return self._rebalance(before, view, watchlist, said)._replace(problem=problem)
        return self._beyond(before, decision.level, said)._replace(problem=problem)

    def _new_fault(self, view: View, watchlist: Watchlist, causes: Sequence[Cause], untested: tuple[int, ...]) -> Problem:
        """Another set of faults: ask the planner, and until it answers climb with what is known."""
        self._cause = causes[0] if causes else "compute"
        remaining_s = self._durations(self._cause).remaining_s(self._slow_s)
        self._returning = None
        question = Question(self._layout, self._home, self._schedule, causes or (self._cause,), self._num_atoms, self._costs, remaining_s, untested)
        self._advice = ask(question, self._policy, view, watchlist.slowdown, watchlist.links)
        self._set_levels()
        return self._advice.problem

    def _set_levels(self) -> None:
        if self._advice is not None:
            self._levels = self._advice.levels(self._validation_s, self._costs.border_s, self._durations(self._cause), self._config.rho)

    def _durations(self, cause: Cause) -> Durations:
        return self._known.get(cause) or Durations.of(cause)

    def _way_back(self, step: StepSummary, view: View, watchlist: Watchlist) -> Lower | None:
        """The healthy layout, where another is in force, and what it is predicted to save: observed times would sum up their noise."""
        if not self._ladder.changed:
            return None
        faults = watchlist.slowdown, watchlist.links
        home_s, present_s = (view.expected_s(layout, step.workload, *faults) for layout in (self._home, self._layout))
        return Lower("the healthy layout", 0, present_s - home_s, self._pause_home_s())

    def _pause_home_s(self) -> float:
        """What going back will cost."""
        return self._costs.border_s if self._only_split_differs() else self._costs.regroup_s

    def _only_split_differs(self) -> bool:
        return len(self._home.replicas) == len(self._layout.replicas) and _same(self._home, self._layout.with_split(self._home.split))

    def _rebalance(self, before: LadderState, view: View, watchlist: Watchlist, said: list[tuple[str, str, Any]]) -> Order:
        if not is_plain(self._layout):  # its routes name micro-batches: another split is another plan
            self._ladder = refuse(before, self._ladder)
            return Order(None, said)
        pause_s = self._costs.border_s
        plan = propose_split(self._layout, view.model, view.recent_workload(), watchlist.slowdown, view.healthy_s(), pause_s, cause=self._cause)
        remaining = self._durations(self._cause).remaining_s(self._slow_s) / view.healthy_s()
        good, verdict = accept(plan, self._config.min_gain, remaining)
        said.append(("plan", verdict, plan))
        if good:
            self.proposed += (plan,)
        carried_out = REBALANCE in self._policy.carried_out
        if good and not carried_out:
            said.append(("note", f"plan.policy is {self._config.policy}: recommended, not carried out", None))
        if not good or not carried_out:
            self._ladder = refuse(before, self._ladder)
            return Order(None, said)
        self._ordered = plan
        return Order(plan.layout, said)

    def _beyond(self, before: LadderState, level: str, said: list[tuple[str, str, Any]]) -> Order:
        """What the planner found: carried out if the policy does so, else what would have been done."""
        assert self._advice is not None
        plan = self._advice.plans[level]
        if level in self._policy.carried_out:
            self._ordered = self._in_order(plan, self._advice.problem)
            said.append(("plan", f"accepted: {plan.reason}", self._ordered))
            self.proposed += (self._ordered,)
            return Order(self._ordered.layout, said)
        self._ladder = refuse(before, self._ladder)
        said.append(("plan", f"not carried out, as plan.policy is {self._config.policy}: {level}, {plan.reason}", plan))
        return Order(None, said)

    def _readmit(self, view: View, newcomers: Newcomers) -> Order:
        """Ranks that stand by and are fit: ask how they can work; once that is known, and worth its pause, let them."""
        fit = newcomers.fit(self._layout.standby)
        if fit and self._returning is None:
            question = Question(self._layout, self._home, self._schedule, (), self._num_atoms, self._costs, LASTING_S, newcomers.untested)
            self._returning = ask(question, self._policy, view, {})
            return Order(None, [("note", f"planning work for {rank_words(fit)}", None)], self._returning.problem)
        if not fit or self._returning is None or not self._returning.plans:
            return Order(None, [])
        newcomers.offered()
        plan = max(self._returning.plans.values(), key=lambda one: one.gain)
        problem = self._returning.problem
        good, verdict = accept(plan, self._config.min_gain, problem.remaining_iterations)
        self._returning = None
        said: list[tuple[str, str, Any]] = [("plan", verdict, plan)]
        if not good or not self._policy.carried_out:
            return Order(None, said)
        self._ordered = self._in_order(plan, problem)
        self.proposed += (self._ordered,)
        return Order(self._ordered.layout, said)

    def _in_order(self, plan: Plan, problem: Problem) -> Plan:
        """The plan's layout as the next generation; where micro-batches are routed, with the order of work that it was priced with."""
        return msgspec.structs.replace(plan, layout=_next(ordered(plan.layout, problem.rates, self._schedule), self._layout))

    def _is_readmission(self, plan: Plan) -> bool:
        return not self._ladder.changed and any(action.kind == "readmit" for action in plan.actions)

    def _go_home(self, view: View, watchlist: Watchlist, why: str) -> Order:
        """Back to the layout that the job began with: no rank is slow any more, or not enough for another one."""
        home = _next(self._home, self._layout)
        present_s, predicted_s = (view.mean_expected_s(layout, watchlist.slowdown, watchlist.links) for layout in (self._layout, home))
        only_split = self._only_split_differs()
        words = f"back to {'/'.join(map(str, home.split))} micro-batches per replica{'' if only_split else ', and to the first layout of layers and ranks'}"
        reason = f"{why}; {words}: predicted {predicted_s:.3f} s an iteration instead of {present_s:.3f} s"
        floor_s = min(bound_s(view.healthy_s(), home, watchlist.slowdown), predicted_s)
        plan = Plan(home, (Action("split" if only_split else "relayer", words),), present_s, predicted_s, floor_s, self._pause_home_s(), 0, reason)
        self._ordered = plan
        return Order(home, [("plan", reason, plan)])


def _same(one: Layout, other: Layout) -> bool:
    """Whether the same ranks do the same work; generations may differ, and who stands by."""
    return one.replicas == other.replicas and one.routes == other.routes


def _next(layout: Layout, present: Layout) -> Layout:
    """`layout` as the generation after the present one; whoever has no work in it stands by."""
    standby = tuple(sorted(set(present.members) - set(layout.ranks)))
    return msgspec.structs.replace(layout, standby=standby, generation=present.generation + 1)
