"""The joint planner: groups, places, layers and micro-batches together, the single changes beside it, ranked by one price.

Fixed order (ResiHP: tensor, then pipeline, then data) and single levels (GREYHOUND) are candidates among others here. The
present layout is always one, so no plan is worse than it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from lurcher.layout import Layout
from lurcher.model.price import price
from lurcher.model.traffic import network
from lurcher.plan.arrange import Arrangement, Ground, arrange, to_layout
from lurcher.plan.causes import answers
from lurcher.plan.cells import Cells, make_cells
from lurcher.plan.changes import change_actions
from lurcher.plan.consolidate import propose_consolidation
from lurcher.plan.dead import propose_without_dead
from lurcher.plan.detour import detour
from lurcher.plan.exhaust import every_arrangement
from lurcher.plan.gather import by_stage, grids
from lurcher.plan.layers import propose_layers
from lurcher.plan.least import Least, job_of, least_of
from lurcher.plan.membership import propose_membership
from lurcher.plan.migration import propose_migration
from lurcher.plan.placement import propose_swap
from lurcher.plan.problem import Problem
from lurcher.plan.readmission import propose_readmission
from lurcher.plan.resplit import MOST_OF_EVEN, propose_resplit
from lurcher.plan.restart import propose_restart
from lurcher.plan.shares import propose_shares
from lurcher.plan.situation import Candidate, Situation, keep, plan_of, situation_of
from lurcher.plan.standby import propose_standby
from lurcher.records import Plan

CLOSE = 0.03
"""A plan within this of the bound ends the search."""
MOST_STAGES = 32
"""Above so many stages only the joint planner, readmission and restart are asked: the others look at single changes one by one."""
SMALL_RANKS = 256
"""Up to so many ranks every arrangement is priced, for it takes no time."""
MANY_COUNTS = 4
"""Micro-batches to a stage from which slow groups are gathered first, see `gather.grids`."""
MOST_ROUNDS = 4
"""Improvements on top of the best plan, one after the other."""

Generator = Callable[[Situation], tuple[Plan, ...]]
LIGHT: tuple[Generator, ...] = (
    propose_resplit,
    propose_layers,
    propose_membership,
    propose_shares,
    propose_standby,
    propose_swap,
    propose_without_dead,
)
"""Generators of single changes that answer at once in a small job."""
HEAVY: tuple[Generator, ...] = (propose_migration, propose_consolidation)
"""Those that search."""


def plan_all(problem: Problem) -> tuple[Plan, ...]:
    """Every plan worth a look, best first: what an iteration takes with the pause spread over the iterations left.

    The present layout is among them. Deterministic; equal layouts come once. The bound's dear terms are worked out only
    where the others do not show that the best plan is close.
    """
    small = sum(len(replica.stages) for replica in problem.layout.replicas) <= MOST_STAGES
    job = job_of(problem.layout, problem.rates, problem.schedule, problem.num_atoms)
    least = least_of(job, whole=small)
    situation = situation_of(problem, least.seconds)
    plans = list(propose_joint(situation))
    for propose in (*(LIGHT + HEAVY if small else ()), propose_readmission, propose_restart):
        plans += propose(situation)
    if small and plans:
        plans += _improved(situation, min(plans, key=lambda plan: plan.predicted_s))
    best_s = min([situation.present_s, *(plan.predicted_s for plan in plans)])
    if not small and best_s > least.seconds * (1 + CLOSE):
        least = least_of(job)
    situation = msgspec.structs.replace(situation, bound_s=least.seconds)
    return _ranked([keep(situation, _keep_words(situation)), *plans], least, problem)


def propose_joint(situation: Situation) -> tuple[Plan, ...]:
    """The best arrangement of all there is, if it beats the present layout: see `gather.grids` and `arrange.arrange`.

    For slow links alone groups only change places; work is not shared out anew.
    """
    share = answers("relayer", situation.causes) or bool(situation.dead_at_work())
    if not _is_plain(situation.layout) or not (share or situation.rates.links and answers("swap", situation.causes)):
        return ()
    cells = make_cells(situation.layout, situation.rates, situation.num_atoms)
    many = sum(stage.tp_size for stage in cells.stages) > SMALL_RANKS
    best, best_s = None, situation.present_s
    for layout in _layouts(situation, cells) if share else _off_links(situation, cells):
        found = price(layout, situation.rates, situation.schedule)
        if found.fits and found.iteration_s < best_s * (1 - 1e-9):
            best, best_s = layout, found.iteration_s
        if many and best_s <= situation.bound_s * (1 + CLOSE):
            break
    if best is None:
        return ()
    actions = change_actions(situation.layout, best, situation.rates.dead, off_links=not share)
    return (plan_of(situation, Candidate(best, actions), best_s),)


def _off_links(situation: Situation, cells: Cells) -> Iterator[Layout]:
    """The present work on groups that keep off slow links; and with the roles of nodes swapped, see `gather.by_stage`."""
    layout = situation.layout
    if not situation.rates.links or (cells.grid < 0).any() or len({stage.tp_size for stage in cells.stages}) > 1:
        return
    nodes = np.array([situation.rates.node(stage.ranks[0]) for stage in cells.stages])
    sizes = np.array([[stage.num_layers for stage in replica.stages] for replica in layout.replicas])
    for grid in (cells.grid, by_stage(cells.grid, nodes)):
        placed, former = detour(cells, situation.rates, grid)
        yield to_layout(layout, cells, Arrangement(placed, sizes[former], tuple(layout.split[d] for d in former.tolist()), 0.0))


def _layouts(situation: Situation, cells: Cells) -> Iterator[Layout]:
    """The layouts to price: in a small job all arrangements, in a large one those that beat all before them."""
    layout = situation.layout
    yield from _off_links(situation, cells)
    ground = Ground(layout, situation.rates, situation.schedule, cells, network(situation.rates))
    even = -(-layout.num_microbatches // len(layout.replicas))
    for found in every_arrangement(ground, cap=min(layout.num_microbatches, MOST_OF_EVEN * even)):
        yield to_layout(layout, cells, found)
    best: Arrangement | None = None
    first, *others = grids(cells, together_first=even >= MANY_COUNTS * cells.grid.shape[1])
    for some in ([first], others):  # the first alone, for it often ends the search; many together take little more than one
        for arranged in arrange(ground, some) if some else ():
            if arranged is not None and (best is None or arranged.pipeline_s < best.pipeline_s * (1 - 1e-9)):
                best = arranged
                yield to_layout(layout, cells, arranged)


def _is_plain(layout: Layout) -> bool:
    """One chunk a stage, as many stages in every replica, and no routes: what arrangements start from."""
    depths = {len(replica.stages) for replica in layout.replicas}
    return not layout.routes and len(depths) == 1 and all(len(stage.chunks) == 1 for _, _, stage in layout.stages())


def _improved(situation: Situation, best: Plan) -> list[Plan]:
    """The best plan with further single changes on top, for as long as they help and it is not close to the bound."""
    found: list[Plan] = []
    for _ in range(MOST_ROUNDS):
        if best.predicted_s <= situation.bound_s * (1 + CLOSE) or best.layout == situation.layout:
            break
        onward = msgspec.structs.replace(situation, layout=best.layout, present_s=best.predicted_s)
        steps = [plan for propose in LIGHT for plan in propose(onward)[:1]]
        if not steps:
            break
        step = min(steps, key=lambda plan: plan.predicted_s)
        layout = msgspec.structs.replace(step.layout, generation=situation.layout.generation + 1)
        best = plan_of(situation, Candidate(layout, change_actions(situation.layout, layout, situation.rates.dead)), step.predicted_s)
        found.append(best)
    return found


def _ranked(plans: list[Plan], least: Least, problem: Problem) -> tuple[Plan, ...]:
    different: dict[Layout, Plan] = {}
    for plan in (_bounded(plan, least) for plan in plans):
        known = different.get(plan.layout)
        if known is None or plan.pause_s < known.pause_s:
            different[plan.layout] = plan
    each = max(problem.remaining_iterations, 1.0)
    return tuple(sorted(different.values(), key=lambda plan: (plan.predicted_s + plan.pause_s / each, len(plan.actions), plan.bytes_moved)))


def _bounded(plan: Plan, least: Least) -> Plan:
    """With the bound of its class; lowered to a plan that lies outside it, such as on new nodes."""
    return msgspec.structs.replace(plan, bound_s=min(least.routed_s if plan.layout.routes else least.seconds, plan.predicted_s))


def _keep_words(situation: Situation) -> str:
    if situation.present_s == float("inf"):
        return "keep the present layout: it cannot run, for a dead rank has work or memory does not hold it"
    return f"keep the present layout: {situation.present_s:.3f} s an iteration, {situation.present_s / situation.bound_s - 1:.1%} above the bound"
