"""What each policy may do about a proven fault, in which order, and who proposes it: one table.

`greyhound` is the ladder of GREYHOUND (ATC'25, section 6): ignore (S1), another split of the micro-batches (S2), another topology
(S3: nodes change places for slow links, stragglers are consolidated), restart (S4). `resihp` is ResiHP's scheduler (arXiv
2605.06374): tensor groups, then layers, then micro-batches, each on top of the step before it, as one change. `joint` looks for all at once. All climb the
same ladder, with costs as measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from lurcher.config import PolicyName
from lurcher.control.background import Planner
from lurcher.control.exclusion import propose_exclusion, propose_shift
from lurcher.control.planners import one_on_another, side_by_side
from lurcher.plan.consolidate import propose_consolidation
from lurcher.plan.joint import plan_all
from lurcher.plan.layers import propose_layers
from lurcher.plan.placement import propose_swap
from lurcher.plan.problem import Problem
from lurcher.plan.readmission import propose_readmission
from lurcher.plan.resplit import propose_resplit
from lurcher.plan.restart import propose_restart
from lurcher.records import Plan

REBALANCE, RELAYOUT, RESTART = "rebalance", "relayout", "restart"
LEVELS = (REBALANCE, RELAYOUT, RESTART)
"""In order of cost, each a superset of what the one before it may do."""
READMIT = side_by_side(propose_readmission)
"""The planner of every policy where nothing is wrong: ranks that stand by, back to work."""
_NATURAL: Mapping[str, str] = MappingProxyType({"split": REBALANCE, "restart": RESTART})


class Policy(NamedTuple):
    """The levels of a policy's ladder, cheapest first; those that are carried out, the others being written down; and who plans."""

    levels: tuple[str, ...]
    carried_out: frozenset[str]
    planner: Planner

    def plan(self, problem: Problem) -> tuple[Plan, ...]:
        """Ranked plans, the present layout among them."""
        return self.planner(problem) if problem.causes else READMIT(problem)

    def level_of(self, plan: Plan) -> str:
        """The level that a plan belongs to: that of its dearest action, or the next one that the policy has; "" for keeping the layout, or for none."""
        kinds = {action.kind for action in plan.actions} - {"keep"}
        if not kinds:
            return ""
        dearest = max(LEVELS.index(_NATURAL.get(kind, RELAYOUT)) for kind in kinds)
        return next((level for level in self.levels if LEVELS.index(level) >= dearest), "")


POLICIES: Mapping[PolicyName, Policy] = MappingProxyType(
    {
        "observe": Policy(LEVELS, frozenset(), plan_all),
        "rebalance": Policy(LEVELS, frozenset({REBALANCE}), plan_all),
        # A restart cures all on its ladder, whoever has to find the node; it is only written down here.
        "greyhound": Policy(
            LEVELS,
            frozenset({REBALANCE, RELAYOUT}),
            side_by_side(propose_resplit, propose_swap, propose_consolidation, propose_restart, spare_nodes=1),
        ),
        "resihp": Policy((RELAYOUT,), frozenset({RELAYOUT}), one_on_another(propose_exclusion, propose_layers, propose_shift)),
        "joint": Policy(LEVELS, frozenset({REBALANCE, RELAYOUT}), plan_all),
    }
)
