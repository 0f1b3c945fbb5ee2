"""What could be done about the present faults beyond moving micro-batches: the planner's answer as levels of the ladder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from lurcher.control.measured import measured_rates
from lurcher.control.orders import PlanReport
from lurcher.control.view import View
from lurcher.layout import Layout
from lurcher.plan.durations import Durations, learned_levels
from lurcher.plan.ladder import Level
from lurcher.plan.moves import SwitchCosts
from lurcher.plan.problem import Problem
from lurcher.records import Cause, Plan

REBALANCE, RELAYOUT, RESTART = "rebalance", "relayout", "restart"
LEVELS = (REBALANCE, RELAYOUT, RESTART)
"""In order of cost, each a superset of what the one before it may do."""
_LEVEL_OF = MappingProxyType({"split": REBALANCE, "restart": RESTART})


class Advice(NamedTuple):
    """The question about one set of faults, and the best plan of each level once it has been answered. `healthy_s` is an iteration without faults."""

    problem: Problem
    healthy_s: float
    plans: dict[str, Plan]

    def answered(self, report: PlanReport, min_gain: float, *, adoptable_only: bool) -> Advice:
        """The same with the plans of a report, or with those of them that the engine can carry out."""
        plans = [plan for plan in report.plans if not adoptable_only or is_adoptable(plan.layout)]
        return self._replace(plans=best_of_levels(plans, min_gain))

    def levels(self, rebalance_s: float, known: Durations, rho: float) -> tuple[Level, ...]:
        """The ladder: rebalancing, which costs `rebalance_s` as measured, then what the planner found, at its predicted pause.

        Without an answer rebalancing stands alone, at break-even: what it leaves is not known.
        """
        if not self.plans:
            return (Level(REBALANCE, rebalance_s),)
        present_s = next(iter(self.plans.values())).present_s
        by_rebalancing_s = self.plans[REBALANCE].predicted_s if REBALANCE in self.plans else present_s
        found, left = [Level(REBALANCE, rebalance_s)], [self._lost(present_s), self._lost(by_rebalancing_s)]
        for name in (RELAYOUT, RESTART):
            if name in self.plans:
                found.append(Level(name, max(self.plans[name].pause_s, found[-1].cost_s)))
                left.append(self._lost(self.plans[name].predicted_s))
        return learned_levels(found, left, known, rho)

    def _lost(self, iteration_s: float) -> float:
        """Share of the time that is lost in iterations this long."""
        return max(0.0, 1.0 - self.healthy_s / iteration_s)


class Question(NamedTuple):
    """What the planner is asked about: the layout in force, and the healthy one that losses are measured against.

    `border_s` is the measured pause of a change that moves no state, `remaining_s` how long the faults will last.
    """

    layout: Layout
    home: Layout
    schedule: str
    causes: Sequence[Cause]
    num_atoms: int
    border_s: float
    remaining_s: float


def ask(question: Question, view: View, slowdown: Mapping[int, float]) -> Advice:
    """The question as a problem, with the rates measured so far."""
    healthy_s = view.mean_expected_s(question.home, {})
    problem = Problem(
        layout=question.layout,
        rates=measured_rates(view.model, question.layout, view.recent_workload(), slowdown),
        schedule=question.schedule,
        causes=tuple(question.causes),
        num_atoms=question.num_atoms,
        costs=SwitchCosts(border_s=question.border_s),
        remaining_iterations=max(1.0, question.remaining_s / healthy_s),
    )
    return Advice(problem, healthy_s, {})


def is_adoptable(layout: Layout) -> bool:
    """Whether the engine can carry a layout out: every micro-batch at home, and one chunk of layers a stage."""
    return not layout.routes and all(stage.ranks and len(stage.chunks) == 1 for _, _, stage in layout.stages())


def level_of(plan: Plan) -> str:
    """The level that a plan belongs to: that of its dearest action; "" for keeping the layout."""
    kinds = {action.kind for action in plan.actions} - {"keep"}
    return max((_LEVEL_OF.get(kind, RELAYOUT) for kind in kinds), key=LEVELS.index, default="")


def best_of_levels(plans: Sequence[Plan], min_gain: float) -> dict[str, Plan]:
    """The fastest plan of each level, of equally fast ones the first; a dearer level only if it is `min_gain` times as fast as the cheaper ones."""
    best: dict[str, Plan] = {}
    for plan in plans:
        name = level_of(plan)
        if name and (name not in best or plan.predicted_s < best[name].predicted_s):
            best[name] = plan
    worth: dict[str, Plan] = {}
    for name in LEVELS:
        if name in best and all(best[name].predicted_s * min_gain <= cheaper.predicted_s for cheaper in worth.values()):
            worth[name] = best[name]
    return worth
