"""When to act: GREYHOUND's Algorithm 1, ski rental on the accumulated loss, up and down. Pure; a new state out of the old one.

Bearing the fault is renting, a change of the layout is buying. The next level is applied once the seconds lost to this
set of faults, sum of max(0, observed - expected) over its iterations, reach the level's threshold: its measured cost, as
published, or what `lurcher.plan.durations` learned. Not the wall clock: a mild fault must not trigger a dear change.

In the literature this is multislope ski rental, not additive, since a dearer level is paid in full (Lotker, Patt-Shamir, Rawitz,
arXiv 0802.2832). How far from the best in hindsight, where a dearer level never leaves more loss than a cheaper one; each up to one
iteration's loss, for a decision falls at an iteration's end:

- Two options (ignore, and one level that ends the loss or a part of it): 2.
- L options, that is L - 1 levels of cost c_1 <= c_2 <= ..: max over j of 1 + (c_1 + .. + c_j) / c_j. That is at most L,
  attained where all levels cost the same, and close to 2 where each is much dearer than the one before it.
- Any thresholds: `worst_case` computes the factor. One level at lambda x cost has max(1 + lambda, 1 + 1 / lambda).

All are attained; tests/unit/test_ladder.py builds the adversary. Why they hold: the best in hindsight uses one level i from
the onset on and pays c_i + R_i; what the ladder loses after it bought i is at most R_i, and before that at most i's
threshold.

Down again: a layout made for worse faults costs something once they are milder or gone. What a milder layout would have
saved is a second account, which never falls below 0, and the step down waits until it reaches the cost of the step, or that
of coming up again where this is more. With two layouts, up and down costing c and b <= c, faults that come and go without
end, each lasting until it is answered, so cost at most 3 + b / c <= 4 times the best in hindsight: a cycle costs 3 c + b, and
the best, wherever it stays, pays c. Published is the way back at once, which has no bound: a fault that flaps is paid for
twice a cycle. A fault that ends before it is answered is an episode of its own and leaves no account, as published. Cool-down
adds what is lost while waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from lurcher.errors import UserError

Floats = NDArray[np.float64]


class Level(NamedTuple):
    """A remedy, e.g. REBALANCE. `cost_s` is measured: the pauses for validating, planning and switching, in seconds.

    `threshold_s` is the loss at which it is applied; None is break-even, the cost itself.
    """

    name: str
    cost_s: float
    threshold_s: float | None = None

    @property
    def at_s(self) -> float:
        """The loss, in seconds, at which this level is applied."""
        return self.cost_s if self.threshold_s is None else self.threshold_s


class Lower(NamedTuple):
    """A milder layout to step down to: `level` of its levels stay in force, 0 is the healthy layout.

    `saves_s` is what it would have saved in this iteration under the present faults, in seconds, negative where it would
    have lost; `cost_s` is the pause of going there.
    """

    name: str
    level: int
    saves_s: float
    cost_s: float


class LadderState(msgspec.Struct, frozen=True):
    """Where an episode stands. An episode is one set of faults; it ends when they heal or another set takes over.

    `fault` is any key that tells sets of faults apart, "" for none; `level` counts the levels tried for it; `loss_s` is
    what it has cost so far; `in_force` counts the levels in the present layout, 0 for the healthy one, from this or an
    earlier episode. `since_change` counts iterations since the last change, which answered `answered`; to come up to
    what is in force costs `paid_s`, and a lower layout would have saved `saved_s`.
    """

    fault: str = ""
    level: int = 0
    loss_s: float = 0.0
    in_force: int = 0
    since_change: int = 0
    answered: str = ""
    paid_s: float = 0.0
    saved_s: float = 0.0

    @property
    def changed(self) -> bool:
        """Whether the layout is another than the healthy one."""
        return self.in_force > 0


class LadderDecision(NamedTuple):
    """`hold`: go on; `apply`: try the level; `lower`: go down to it; `revert`: back to the healthy layout. `level` is its name."""

    kind: Literal["hold", "apply", "lower", "revert"]
    level: str = ""


Step = tuple[LadderState, LadderDecision, str]


def step(state: LadderState, loss_s: float, levels: Sequence[Level], *, fault: str, cooldown_iterations: int = 0, lower: Lower | None = None) -> Step:
    """One iteration further: the new state, what to do before the next iteration, and why.

    `loss_s` is observed - expected on the healthy layout, in seconds; negative counts as none. `levels` stand in order of
    cost and exclude ignoring. `fault` names the faults present now, "" once they have healed. At least
    `cooldown_iterations` lie between two changes, against faults that come and go; an answer to another fault than
    the last one does not wait. `lower` is the best milder layout than the one in force, where one is known; once the
    faults have healed it stands for the healthy one, and None takes the change back at once. What was lost to faults that
    got no answer counts for the set that follows them: renaming a fault does not put the answer off.
    Raises UserError for levels out of order.
    """
    _check(levels)
    is_new = fault != state.fault
    now = LadderState(
        fault,
        0 if is_new else state.level,
        max(0.0, loss_s) + (state.loss_s if not is_new or state.level == 0 else 0.0),
        state.in_force,
        state.since_change + 1,
        state.answered,
        state.paid_s,
        state.saved_s if lower is None else max(0.0, state.saved_s + lower.saves_s),
    )
    if not fault:
        return _healed(now, cooldown_iterations, lower)
    if lower is not None and lower.level < now.in_force and now.saved_s >= max(lower.cost_s, now.paid_s):
        return _down(now, cooldown_iterations, lower, f"{fault} is milder")
    if now.level == len(levels):
        return now, LadderDecision("hold"), f"hold: {fault} has cost {now.loss_s:.2f} s, and no further level is left"
    chosen = levels[now.level]
    needs = f"the {chosen.at_s:.2f} s of {chosen.name}"
    if now.loss_s < chosen.at_s:
        return now, LadderDecision("hold"), f"hold: {fault} has cost {now.loss_s:.2f} s, less than {needs}"
    if fault == now.answered and now.since_change < cooldown_iterations:
        return now, LadderDecision("hold"), _cooling(now, cooldown_iterations, "")
    reason = f"{chosen.name}: {fault} has cost {now.loss_s:.2f} s, which reaches the {chosen.at_s:.2f} s {_why(chosen)}"
    level = now.level + 1
    after = LadderState(fault, level, now.loss_s, max(level, now.in_force), 0, fault, max(chosen.cost_s, now.paid_s))
    return after, LadderDecision("apply", chosen.name), reason


def refuse(before: LadderState, after: LadderState) -> LadderState:
    """The state when the applied level found no plan worth carrying out: the level counts as tried, but nothing has changed."""
    return msgspec.structs.replace(
        after,
        in_force=before.in_force,
        since_change=before.since_change + 1,
        answered=before.answered,
        paid_s=before.paid_s,
        saved_s=before.saved_s,
    )


def worst_case(levels: Sequence[Level]) -> float:
    """The ladder's cost over the best in hindsight, at worst, over all faults; attained, up to one iteration's loss. See `worst_cases`."""
    _check(levels)
    return float(worst_cases(np.array([level.cost_s for level in levels]), np.array([[level.at_s for level in levels]]))[0])


def worst_cases(costs_s: Floats, thresholds_s: Floats) -> Floats:
    """`worst_case` of many thresholds, shape (candidates, levels), for levels of costs (levels,) in order; seconds in, factors out.

    With thresholds t_1 <= t_2 <= .. (a level waits for the ones before it) and C_j = c_1 + .. + c_j it is the largest over j of
    (t_j + C_j) / min(t_j, min over i <= j of c_i + t_j - t_i, c_{j+1}): the adversary ends the fault just after level j is
    bought; the levels not yet bought would have ended it, those bought leave it as it is. 1 without levels.
    """
    reached_s = np.maximum.accumulate(thresholds_s, axis=1)
    bought_s = np.cumsum(costs_s)
    head_start_s = np.minimum(0.0, np.minimum.accumulate(costs_s - reached_s, axis=1))
    best_s = np.minimum(reached_s + head_start_s, np.append(costs_s[1:], np.inf)[: len(costs_s)])
    paid_s = reached_s + bought_s
    ratios = np.divide(paid_s, best_s, out=np.full_like(paid_s, np.inf), where=best_s > 0)
    worst: Floats = np.where(paid_s > 0, ratios, 1.0).max(axis=1, initial=1.0)
    return worst


def _healed(now: LadderState, cooldown_iterations: int, lower: Lower | None) -> Step:
    """No fault is present: go back to the healthy layout if another one is in place, and staying has cost as much as going."""
    now = msgspec.structs.replace(now, level=0, loss_s=0.0)
    if not now.in_force:
        return msgspec.structs.replace(now, saved_s=0.0), LadderDecision("hold"), "hold: no fault, and the layout is the healthy one"
    if lower is not None and now.saved_s < max(lower.cost_s, now.paid_s):
        owed_s = max(lower.cost_s, now.paid_s)
        return (
            now,
            LadderDecision("hold"),
            f"hold: healed, but staying has cost {now.saved_s:.2f} s, less than the {owed_s:.2f} s of going back and coming again",
        )
    return _down(now, cooldown_iterations, Lower("the healthy layout", 0, 0.0, 0.0), f"{now.answered} has healed")


def _down(now: LadderState, cooldown_iterations: int, lower: Lower, why: str) -> Step:
    if now.since_change < cooldown_iterations:
        return now, LadderDecision("hold"), _cooling(now, cooldown_iterations, f"{why}, but ")
    kind: Literal["lower", "revert"] = "lower" if lower.level else "revert"
    reason = f"{kind}: {why}, and the last change was {now.since_change} iterations ago"
    if now.saved_s > 0:
        reason += f"; {lower.name} would have saved {now.saved_s:.2f} s since"
    after = LadderState(now.fault, lower.level, 0.0, lower.level, 0, now.answered, now.paid_s if lower.level else 0.0)
    return after, LadderDecision(kind, lower.name if lower.level else ""), reason


def _cooling(now: LadderState, cooldown_iterations: int, why: str) -> str:
    return f"hold: {why}the last change was {now.since_change} iterations ago, {cooldown_iterations} must lie between two"


def _why(level: Level) -> str:
    return f"that {level.name} costs" if level.threshold_s is None else f"learned for {level.name}, which costs {level.cost_s:.2f} s"


def _check(levels: Sequence[Level]) -> None:
    costs = [level.cost_s for level in levels]
    if costs != sorted(costs) or any(not cost >= 0 for cost in costs):
        raise UserError(f"ladder levels cost {costs} s; they must stand in order of cost, none below 0: reorder them")
    if any(not level.at_s >= 0 for level in levels):
        raise UserError(f"ladder levels act at losses of {[level.at_s for level in levels]} s; none may be below 0: correct it")
