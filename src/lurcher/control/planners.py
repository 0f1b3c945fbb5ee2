"""Generators of single changes put together to planners: side by side, or each on top of the one before it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from lurcher.control.background import Planner
from lurcher.plan.least import job_of, least_of
from lurcher.plan.problem import Problem
from lurcher.plan.situation import Candidate, Situation, keep, plan_of, situation_of
from lurcher.records import Action, Plan

Generator = Callable[[Situation], tuple[Plan, ...]]
"""Plans that are predicted to be better than the present layout, best first."""


def side_by_side(*generators: Generator, spare_nodes: int = 0) -> Planner:
    """A planner of single changes: each generator looks at the present layout. `spare_nodes`: so many healthy nodes are taken to be there for a restart."""

    def plan(problem: Problem) -> tuple[Plan, ...]:
        situation = priced(msgspec.structs.replace(problem, spare_nodes=max(problem.spare_nodes, spare_nodes)))
        return ranked(situation, problem, (found for propose in generators for found in propose(situation)))

    return plan


def one_on_another(*generators: Generator) -> Planner:
    """A planner that takes the generators in this order, each on top of the best that the ones before it came to.

    A step that lowers no time is left out. All that was looked at is returned: what each step proposed, on top of the steps before it.
    """

    def plan(problem: Problem) -> tuple[Plan, ...]:
        situation = priced(problem)
        onward, done, found = situation, tuple[Action, ...](), list[Plan]()
        for propose in generators:
            steps = [_whole(situation, done, step) for step in propose(onward)]
            found += steps
            if steps:
                best = min(steps, key=lambda one: one.predicted_s)
                onward, done = msgspec.structs.replace(onward, layout=best.layout, present_s=best.predicted_s), best.actions
        return ranked(situation, problem, found)

    return plan


def priced(problem: Problem) -> Situation:
    """The problem's layout, priced, with its bound."""
    return situation_of(problem, least_of(job_of(problem.layout, problem.rates, problem.schedule, problem.num_atoms)).seconds)


def ranked(situation: Situation, problem: Problem, plans: Iterable[Plan]) -> tuple[Plan, ...]:
    """The plans and the present layout, best first: what an iteration takes with the pause spread over the iterations left."""
    stay = keep(situation, f"keep the present layout: {situation.present_s:.3f} s an iteration")
    each = max(problem.remaining_iterations, 1.0)
    return tuple(sorted((stay, *plans), key=lambda plan: (plan.predicted_s + plan.pause_s / each, len(plan.actions), plan.bytes_moved)))


def _whole(situation: Situation, before: tuple[Action, ...], step: Plan) -> Plan:
    """A step with the steps before it, as one change of the present layout."""
    layout = msgspec.structs.replace(step.layout, generation=situation.layout.generation + 1)
    return plan_of(situation, Candidate(layout, (*before, *step.actions)), step.predicted_s)
