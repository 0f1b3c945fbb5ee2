"""What could be done about the present faults: the planner's answer as levels of the ladder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from lurcher.control.orders import PlanReport
from lurcher.control.policies import LEVELS, REBALANCE, Policy
from lurcher.control.view import NO_LINKS, View
from lurcher.layout import Layout
from lurcher.plan.causes import answers
from lurcher.plan.durations import Durations, learned_levels
from lurcher.plan.ladder import Level
from lurcher.plan.moves import SwitchCosts
from lurcher.plan.problem import Problem
from lurcher.records import Cause, Component, Plan

AS_FAST = 1.005
"""Plans this close to each other count as equally fast: no rate is measured better."""


class Advice(NamedTuple):
    """The question about one set of faults, and the best plan of each level once it has been answered. `healthy_s` is an iteration without faults."""

    problem: Problem
    healthy_s: float
    policy: Policy
    plans: Mapping[str, Plan]

    def answered(self, report: PlanReport, min_gain: float) -> Advice:
        """The same with the best plan of each level; of levels that are carried out only what the engine can adopt."""
        plans = [plan for plan in report.plans if self.policy.level_of(plan) not in self.policy.carried_out or is_adoptable(plan.layout)]
        return self._replace(plans=best_of_levels(plans, self.problem.layout, self.policy, min_gain))

    def levels(self, proof_s: float, border_s: float, known: Durations, rho: float) -> tuple[Level, ...]:
        """The ladder, at costs as measured or planned: `proof_s`, the pause of the benchmark, is paid with the first level whatever it is.

        Rebalancing, which costs `border_s`, needs no answer: without one it stands alone, at break-even, for what it leaves is not known.
        """
        rebalances = REBALANCE in self.policy.levels and answers("split", self.problem.causes)
        first = (Level(REBALANCE, proof_s + border_s),) if rebalances else ()
        if not self.plans:
            return first
        present_s = next(iter(self.plans.values())).present_s
        found, left = list(first), [self._lost(present_s)]
        if first:
            left.append(self._lost(self.plans[REBALANCE].predicted_s if REBALANCE in self.plans else present_s))
        for name, plan in self.plans.items():
            if name != REBALANCE:
                found.append(Level(name, max(plan.pause_s, found[-1].cost_s) if found else proof_s + plan.pause_s))
                left.append(self._lost(plan.predicted_s))
        return learned_levels(found, left, known, rho)

    def _lost(self, iteration_s: float) -> float:
        """Share of the time that is lost in iterations this long."""
        return max(0.0, 1.0 - self.healthy_s / iteration_s)


class Question(NamedTuple):
    """What the planner is asked about: the layout in force, and the healthy one that losses are measured against.

    `costs` are the pauses as measured so far, `remaining_s` is how long the faults will last; ranks in `untested` stand by, and nothing is known of them yet.
    """

    layout: Layout
    home: Layout
    schedule: str
    causes: Sequence[Cause]
    num_atoms: int
    costs: SwitchCosts
    remaining_s: float
    untested: tuple[int, ...] = ()


def ask(question: Question, policy: Policy, view: View, slowdown: Mapping[int, float], links: Mapping[Component, float] = NO_LINKS) -> Advice:
    """The question as a problem, with the rates measured so far."""
    healthy_s = view.mean_expected_s(question.home, {})
    problem = Problem(
        layout=question.layout,
        rates=msgspec.structs.replace(view.rates(slowdown, links), dead=question.untested),  # neither to be used nor asked for state
        schedule=question.schedule,
        causes=tuple(question.causes),
        num_atoms=question.num_atoms,
        costs=question.costs,
        remaining_iterations=max(1.0, question.remaining_s / healthy_s),
    )
    return Advice(problem, healthy_s, policy, {})


def is_adoptable(layout: Layout) -> bool:
    """Whether the engine can carry a layout out, routes and empty stages included: it runs one chunk of layers a stage."""
    return all(len(stage.chunks) == 1 for _, _, stage in layout.stages())


def best_of_levels(plans: Sequence[Plan], present: Layout, policy: Policy, min_gain: float) -> dict[str, Plan]:
    """The best plan of each level; each `min_gain` times as fast as the present layout and the cheaper levels.

    Of those that are about as fast as the fastest it is the one that gives the fewest ranks something else to hold.
    """
    found: dict[str, list[Plan]] = {}
    for plan in plans:
        found.setdefault(policy.level_of(plan), []).append(plan)
    worth: dict[str, Plan] = {}
    for name in LEVELS:
        fastest_s = min((plan.predicted_s for plan in found.get(name, ())), default=float("inf"))
        near = [plan for plan in found.get(name, ()) if plan.predicted_s <= fastest_s * AS_FAST]
        best = min(near, key=lambda plan: (_num_moved(present, plan.layout), plan.predicted_s), default=None)
        if best is not None and all(best.predicted_s * min_gain <= slower_s for slower_s in (best.present_s, *_times(worth))):
            worth[name] = best
    return worth


def _num_moved(before: Layout, after: Layout) -> int:
    """Ranks that hold other layers, or another part of them."""
    held = {rank: (stage.chunks, stage.ranks, stage.shares) for _, _, stage in before.stages() for rank in stage.ranks}
    return sum(held.get(rank) != (stage.chunks, stage.ranks, stage.shares) for _, _, stage in after.stages() for rank in stage.ranks)


def _times(plans: Mapping[str, Plan]) -> tuple[float, ...]:
    return tuple(plan.predicted_s for plan in plans.values())
