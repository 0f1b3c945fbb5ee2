"""When to act: GREYHOUND's Algorithm 1, ski rental on the accumulated loss. Pure; a new state out of the old one.

Bearing the fault is renting, a change of the layout is buying. The next level is applied once the seconds lost in this
episode, sum of max(0, observed - expected) over its iterations, reach the level's measured cost. Not the wall clock: a
mild fault must not trigger a dear change.

How far from the best in hindsight: for TWO options (ignore, and one level that ends the loss or part of it) never more
than 2 times, plus at most one iteration's loss, for a decision falls at an iteration's end: until it buys it lost no more
than the cost, and what a level cannot cure the best also bears. For L options in this rule (L - 1 levels) the factor is
L, and it is attained when all levels cost the same: hence cheap levels only pay when the next is clearly dearer. A
threshold of lambda times the cost would have the factor 1 + 1/lambda. Cool-down adds what is lost while waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from lurcher.errors import UserError


class Level(NamedTuple):
    """A remedy, e.g. REBALANCE. `cost_s` is measured: the pauses for validating, planning and switching, in seconds."""

    name: str
    cost_s: float


class LadderState(msgspec.Struct, frozen=True):
    """Where an episode stands. An episode is one set of faults; it ends when they heal or another set takes over.

    `fault` is any key that tells sets of faults apart, "" for none; `level` counts the levels tried for it; `loss_s` is
    what it has cost so far; `changed` says that the layout is not the healthy one, from this or an earlier episode.
    `since_change` counts iterations since the last change, which answered `answered`.
    """

    fault: str = ""
    level: int = 0
    loss_s: float = 0.0
    changed: bool = False
    since_change: int = 0
    answered: str = ""


class LadderDecision(NamedTuple):
    """`hold`: go on; `apply`: try the level; `revert`: go back to the healthy layout. `level` is "" unless applied."""

    kind: Literal["hold", "apply", "revert"]
    level: str = ""


def step(
    state: LadderState, loss_s: float, levels: Sequence[Level], *, fault: str, cooldown_iterations: int = 0
) -> tuple[LadderState, LadderDecision, str]:
    """One iteration further: the new state, what to do before the next iteration, and why.

    `loss_s` is observed - expected of the iteration, in seconds; negative counts as none. `levels` stand in order of
    cost and exclude ignoring. `fault` names the faults present now, "" once they have healed. At least
    `cooldown_iterations` lie between two changes, against faults that come and go; an answer to another fault than
    the last one does not wait.
    """
    _check(levels)
    since = state.since_change + 1
    if not fault:
        return _healthy(LadderState("", 0, 0.0, state.changed, since, state.answered), cooldown_iterations)
    is_new = fault != state.fault
    lost_s = (0.0 if is_new else state.loss_s) + max(0.0, loss_s)
    level = 0 if is_new else state.level
    held = LadderState(fault, level, lost_s, state.changed, since, state.answered)
    if level == len(levels):
        return held, LadderDecision("hold"), f"hold: {fault} has cost {lost_s:.2f} s, and no further level is left"
    chosen = levels[level]
    if lost_s < chosen.cost_s:
        return held, LadderDecision("hold"), f"hold: {fault} has cost {lost_s:.2f} s, less than the {chosen.cost_s:.2f} s of {chosen.name}"
    if fault == state.answered and since < cooldown_iterations:
        return held, LadderDecision("hold"), f"hold: the last change was {since} iterations ago, {cooldown_iterations} must lie between two"
    reason = f"{chosen.name}: {fault} has cost {lost_s:.2f} s, which reaches the {chosen.cost_s:.2f} s that {chosen.name} costs"
    return LadderState(fault, level + 1, lost_s, True, 0, fault), LadderDecision("apply", chosen.name), reason


def refuse(before: LadderState, after: LadderState) -> LadderState:
    """The state when the applied level found no plan worth carrying out: the level counts as tried, but nothing has changed."""
    return msgspec.structs.replace(after, changed=before.changed, since_change=before.since_change + 1, answered=before.answered)


def _healthy(state: LadderState, cooldown_iterations: int) -> tuple[LadderState, LadderDecision, str]:
    """No fault is present: go back to the healthy layout if another one is in place and the cool-down is over."""
    if not state.changed:
        return state, LadderDecision("hold"), "hold: no fault, and the layout is the healthy one"
    if state.since_change < cooldown_iterations:
        reason = f"hold: healed, but the last change was {state.since_change} iterations ago, {cooldown_iterations} must lie between two"
        return state, LadderDecision("hold"), reason
    reason = f"revert: {state.answered} has healed, and the last change was {state.since_change} iterations ago"
    return LadderState(answered=state.answered), LadderDecision("revert"), reason


def _check(levels: Sequence[Level]) -> None:
    costs = [level.cost_s for level in levels]
    if costs != sorted(costs) or any(not cost >= 0 for cost in costs):
        raise UserError(f"ladder levels cost {costs} s; they must stand in order of cost, none below 0: reorder them")
