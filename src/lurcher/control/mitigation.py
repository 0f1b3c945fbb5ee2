"""When to change the layout, to what, and back: the planner's proposal behind the ladder, one change in flight at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

from lurcher.config import PlanSection
from lurcher.control.orders import StepSummary
from lurcher.control.view import View
from lurcher.control.watchlist import Watchlist
from lurcher.layout import Layout
from lurcher.plan.bound import bound_s
from lurcher.plan.ladder import LadderState, Level, refuse
from lurcher.plan.ladder import step as ladder_step
from lurcher.plan.rebalance import accept, propose_split
from lurcher.records import Action, Plan, Reconfiguration

FIRST_PAUSE_S = 0.05
"""Assumed cost of a switch until one has been measured (a new split moves no state: one border without new groups)."""
HORIZON_ITERATIONS = 100.0
"""How long a fault is assumed to last on: GREYHOUND's probes saw means of 10 to 72 minutes, so this is cautious."""


class Order(NamedTuple):
    """What to do at the next border, and what to write down: (kind, reason, value)."""

    layout: Layout | None
    said: list[tuple[str, str, Any]]


class Mitigation:
    """The layout in force, the one ordered, and what was done so far."""

    def __init__(self, plan: PlanSection, layout: Layout) -> None:
        self._config = plan
        self._home = layout
        self._layout = layout
        self._ordered: Plan | None = None
        self._ladder = LadderState()
        self._lost_before_s = 0.0
        self._pause_s = FIRST_PAUSE_S
        self.done: tuple[Reconfiguration, ...] = ()
        self.proposed: tuple[Plan, ...] = ()

    def charge(self, lost_s: float) -> None:
        """A fault was proven that has cost `lost_s` seconds so far, its validation included: loss before the proof is loss too."""
        self._lost_before_s += lost_s

    def observe_layout(self, step: StepSummary) -> Reconfiguration | None:
        """Notice that an ordered layout is in force; returns what was carried out."""
        plan = self._ordered
        if plan is None or step.layout.generation != plan.layout.generation:
            return None
        self._ordered, self._layout = None, step.layout
        self._pause_s = max(step.pause_s, 1e-3)
        back = step.layout.split == self._home.split
        words = "the split was taken back" if back else f"done: {plan.actions[0].text}"
        reason = f"{words}; generation {step.layout.generation} from iteration {step.iteration} on, after a pause of {step.pause_s:.3f} s"
        done = Reconfiguration(plan, step.layout.generation, step.iteration, step.pause_s, 0, "reverted" if back else "applied", reason)
        self.done += (done,)
        return done

    def consider(self, step: StepSummary, view: View, watchlist: Watchlist) -> Order:
        """After one iteration: one step on the ladder, and the plan that it asks for. One change in flight at a time."""
        if self._ordered is not None:
            return Order(None, [])
        loss_s = max(0.0, step.duration_s - view.healthy_s()) + self._lost_before_s
        self._lost_before_s = 0.0
        before = self._ladder
        levels = (Level("rebalance", self._pause_s),)
        self._ladder, decision, reason = ladder_step(
            before, loss_s, levels, fault=watchlist.epoch, cooldown_iterations=self._config.cooldown_iterations
        )
        said: list[tuple[str, str, Any]] = []
        # A hold is worth a line once per fault, and none after the change that the fault got.
        if decision.kind == "apply" or (decision.kind == "hold" and self._ladder.level == 0 and self._ladder.fault != before.fault):
            said.append(("ladder", reason, None))
        if decision.kind == "apply":
            return self._rebalance(before, view, watchlist, said)
        if decision.kind == "revert" and self._layout.split != self._home.split:
            return self._go_home(view, reason)
        return Order(None, said)

    def _rebalance(self, before: LadderState, view: View, watchlist: Watchlist, said: list[tuple[str, str, Any]]) -> Order:
        plan = propose_split(self._layout, view.model, view.recent_workload(), watchlist.slowdown, view.healthy_s(), self._pause_s)
        good, verdict = accept(plan, self._config.min_gain, HORIZON_ITERATIONS)
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

    def _go_home(self, view: View, why: str) -> Order:
        """No rank is slow any more: back to the split that the job began with."""
        home = self._layout.with_split(self._home.split)
        present_s, predicted_s = view.mean_expected_s(self._layout), view.mean_expected_s(home)
        words = f"back to {'/'.join(map(str, home.split))} micro-batches per replica"
        reason = f"{why}; {words}: predicted {predicted_s:.3f} s an iteration instead of {present_s:.3f} s"
        plan = Plan(home, (Action("split", words),), present_s, predicted_s, bound_s(view.healthy_s(), home, {}), self._pause_s, 0, reason)
        self._ordered = plan
        return Order(home, [("plan", reason, plan)])
