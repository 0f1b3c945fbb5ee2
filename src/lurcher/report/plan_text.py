"""Ranked plans as lines for people."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lurcher.plan.problem import Problem
from lurcher.records import Plan
from lurcher.report.words import ratio, seconds, size

KEEP = "keep"


def is_present(plan: Plan) -> bool:
    """Whether a plan keeps the present layout."""
    return any(action.kind == KEEP for action in plan.actions)


def plan_lines(plans: Sequence[Plan], problem: Problem, top: int) -> list[str]:
    """The present layout, the bound, and the `top` best plans, each with what it does."""
    present = next(plan for plan in plans if is_present(plan))
    lines = [present_words(present, problem)]
    for number, plan in enumerate(plans[:top], 1):
        lines.append(f"{number}. {figures(plan)}")
        lines += [f"   {action.kind:<12}{action.text}" for action in plan.actions]
    hidden = len(plans) - top
    if hidden > 0:
        lines.append(f"{hidden} more with --top {len(plans)}")
    return lines


def present_words(present: Plan, problem: Problem) -> str:
    """What is wrong, and what the present layout makes of it."""
    bound_s = present.bound_s
    if math.isinf(present.present_s):
        return f"{faults_words(problem)}. The present layout cannot run; no layout takes less than {duration(bound_s)} an iteration."
    above = f"no layout takes less than {duration(bound_s)}" if present.gap > 0.0005 else "no layout takes less"
    return f"{faults_words(problem)}. The present layout takes {duration(present.present_s)} an iteration; {above}."


def faults_words(problem: Problem) -> str:
    """The faults, named where they are few."""
    rates = problem.rates
    slow = sorted(rank for rank, factor in rates.slowdown.items() if factor != 1.0 and rank not in rates.dead)
    parts = []
    if rates.dead:
        parts.append(_ranks(rates.dead, "dead"))
    if slow:
        factors = [rates.slowdown[rank] for rank in slow]
        by = f"{ratio(factors[0])}" if min(factors) == max(factors) else f"{ratio(min(factors))} to {ratio(max(factors))}"
        parts.append(_ranks(slow, f"slow ({by})"))
    if rates.links:
        parts.append(f"{len(rates.links)} link{'s are' if len(rates.links) > 1 else ' is'} slow")
    return "; ".join(parts) if parts else "Nothing is slow or dead"


def figures(plan: Plan) -> str:
    """Time, gain, distance from the bound, and price, in one line."""
    if math.isinf(plan.predicted_s):
        return "cannot run"
    words = [f"{duration(plan.predicted_s)} an iteration"]
    if not is_present(plan) and math.isfinite(plan.gain):
        words.append(f"{ratio(plan.gain)} the throughput")
    words.append(f"{plan.gap * 100:.1f} % above the bound of {duration(plan.bound_s)}" if plan.gap >= 0.0005 else "at the bound")
    if plan.pause_s:
        words.append(f"pause {duration(plan.pause_s)}")
    if plan.bytes_moved:
        words.append(f"moves {size(plan.bytes_moved)}")
    return ", ".join(words)


def duration(value: float) -> str:
    """Seconds, fine enough to tell plans apart."""
    return f"{value:.2f} s" if 1 <= value < 600 else seconds(value)


def _ranks(ranks: Sequence[int], what: str) -> str:
    if len(ranks) > 8:
        return f"{len(ranks)} ranks are {what}"
    return f"Rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} {'are' if len(ranks) > 1 else 'is'} {what}"
