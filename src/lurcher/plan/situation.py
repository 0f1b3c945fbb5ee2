"""What a planner starts from, and how candidates become plans: one price for all, and never a plan worse than the present layout."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from lurcher.layout import Layout
from lurcher.model.price import price, price_many
from lurcher.model.rates import Rates
from lurcher.plan.causes import REVIVES, answers
from lurcher.plan.moves import SwitchCosts, state_moves
from lurcher.plan.problem import Problem
from lurcher.records import Action, Cause, Plan

LEAST_GAIN = 1e-9
"""A candidate counts as better when it lowers the time by more than rounding."""


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """The present layout, what devices and links can do, and why it is slow. Made by `assess`.

    `num_atoms` are the atoms of a layer that tensor ranks share (KV groups): no more ranks can share it. `spare_nodes` is
    how many healthy nodes a restart could get. `bound_s` is 0 where none is known. `present_s` may be infinite.
    """

    layout: Layout
    rates: Rates
    schedule: str
    causes: tuple[Cause, ...]
    num_atoms: int
    costs: SwitchCosts
    spare_nodes: int
    bound_s: float
    present_s: float

    def answers(self, kind: str) -> bool:
        """Whether a change of this kind, taken alone, can help here."""
        return kind in REVIVES if self.dead_at_work() else answers(kind, self.causes)

    def dead_at_work(self) -> frozenset[int]:
        """Ranks that hold a stage and do nothing any more."""
        return frozenset(self.rates.dead).intersection(self.layout.ranks)


class Candidate(NamedTuple):
    """A layout that may be better, and what is done to get there."""

    layout: Layout
    actions: tuple[Action, ...]


def assess(
    layout: Layout,
    rates: Rates,
    *,
    causes: Sequence[Cause] = (),
    schedule: str = "1f1b",
    num_atoms: int = 8,
    costs: SwitchCosts | None = None,
    spare_nodes: int = 0,
    bound_s: float = 0.0,
) -> Situation:
    """The situation, with the present layout priced once."""
    found = price(layout, rates, schedule)
    present_s = found.iteration_s if found.fits else math.inf
    return Situation(
        layout=layout,
        rates=rates,
        schedule=schedule,
        causes=tuple(causes),
        num_atoms=num_atoms,
        costs=costs or SwitchCosts(),
        spare_nodes=spare_nodes,
        bound_s=bound_s,
        present_s=present_s,
    )


def situation_of(problem: Problem, bound_s: float) -> Situation:
    """The situation that a problem describes, its present layout priced, with its bound."""
    return assess(
        problem.layout,
        problem.rates,
        causes=problem.causes,
        schedule=problem.schedule,
        num_atoms=problem.num_atoms,
        costs=problem.costs,
        spare_nodes=problem.spare_nodes,
        bound_s=bound_s,
    )


def keep(situation: Situation, reason: str) -> Plan:
    """The present layout as a plan: always a candidate."""
    action = Action("keep", "keep the present layout")
    present_s = situation.present_s
    return Plan(situation.layout, (action,), present_s, present_s, min(situation.bound_s, present_s), 0.0, 0, reason)


def improvements(situation: Situation, candidates: Iterable[Candidate]) -> tuple[Plan, ...]:
    """Plans for those candidates that fit into memory and are predicted below the present layout, best first.

    Of equal times the one that moves less comes first, then the one that was named first.
    """
    generation = situation.layout.generation + 1
    different: dict[Layout, Candidate] = {}
    for candidate in candidates:
        layout = msgspec.structs.replace(candidate.layout, generation=generation)
        different.setdefault(layout, Candidate(layout, candidate.actions))
    named = [candidate for candidate in different.values() if candidate.actions]
    prices = price_many([candidate.layout for candidate in named], situation.rates, situation.schedule) if named else ()
    better = [
        plan_of(situation, candidate, found.iteration_s)
        for candidate, found in zip(named, prices, strict=True)
        if found.fits and found.iteration_s < situation.present_s * (1 - LEAST_GAIN)
    ]
    return tuple(sorted(better, key=lambda plan: (float(f"{plan.predicted_s:.9g}"), plan.bytes_moved)))


def plan_of(situation: Situation, candidate: Candidate, predicted_s: float) -> Plan:
    """A candidate with its price, as a plan: what it moves, what it costs once, and a sentence."""
    moves = state_moves(situation.layout, candidate.layout, situation.rates, situation.costs)
    pause_s = moves.pause_s + (situation.costs.lost_iterations * predicted_s if moves.bytes_lost else 0.0)
    bound_s = min(situation.bound_s, predicted_s)
    words = "; ".join(action.text for action in candidate.actions)
    reason = f"{words}: {_gain(situation.present_s, predicted_s)}, for a pause of {pause_s:.2f} s"
    if moves.bytes_moved:
        reason += f" that moves {_size(moves.bytes_moved)}"
    if moves.bytes_lost:
        reason += f", {_size(moves.bytes_lost)} of it from the checkpoint"
    return Plan(candidate.layout, candidate.actions, situation.present_s, predicted_s, bound_s, pause_s, moves.bytes_moved, reason)


def _gain(present_s: float, predicted_s: float) -> str:
    if math.isinf(present_s):
        return f"predicted {predicted_s:.3f} s an iteration, where the present layout cannot run"
    return f"predicted {predicted_s:.3f} s instead of {present_s:.3f} s an iteration, {present_s / predicted_s:.2f} times the throughput"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e7 else f"{num_bytes / 1e6:.3f} MB"
