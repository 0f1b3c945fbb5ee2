"""What happened when: the marks on the report's chart, drawn from the decisions and the verdict."""

from __future__ import annotations

from dataclasses import dataclass

from lurcher.records import ChangePoint, Decision, Finding, Reconfiguration
from lurcher.report.load import Facts, value_as
from lurcher.report.words import ratio, seconds

SAME_EPISODE = 5
"""Marks of one kind closer than this many iterations are one: suspicions repeat until they are settled."""
MAX_MARKS = 40


@dataclass(frozen=True)
class Mark:
    """A moment worth a line on the chart. `kind` picks the colour, `title` is two words, `text` the reason."""

    iteration: int
    kind: str
    title: str
    text: str


def marks(facts: Facts) -> list[Mark]:
    """All marks by iteration; of the same iteration, in the order cause, notice, proof, act."""
    found = _of_verdict(facts)
    for decision in facts.decisions:
        if mark := _of_decision(decision):
            found.append(mark)
    order = ("onset", "suspicion", "confirmed", "validation", "change", "over", "revert", "fault")
    found.sort(key=lambda mark: (mark.iteration, order.index(mark.kind)))
    kept: list[Mark] = []
    for mark in found:
        before = next((old for old in reversed(kept) if old.kind == mark.kind and old.title == mark.title), None)
        if before is None or mark.iteration - before.iteration > SAME_EPISODE:
            kept.append(mark)
    return kept[:MAX_MARKS]


def _of_verdict(facts: Facts) -> list[Mark]:
    found = []
    for event in facts.verdict.events if facts.verdict else ():
        kind = event.kind.replace("_", "-")
        if event.onset_iteration is not None:
            cost = f", {seconds(event.lost_s)} lost" if event.lost_s else ""
            found.append(Mark(event.onset_iteration, "onset", "Onset", f"{kind}: iterations take {ratio(event.slowdown)} as long as expected{cost}"))
        if event.end_iteration is not None:
            found.append(Mark(event.end_iteration + 1, "over", "Recovery", f"{kind} is over"))
    return found


def _of_decision(decision: Decision) -> Mark | None:
    k, text = decision.iteration, decision.reason
    if decision.kind == "suspicion":
        return Mark(k, "suspicion", "Suspicion", text)
    if decision.kind == "fault":
        return Mark(k, "fault", "Fault", text)
    if decision.kind == "finding":
        finding = value_as(decision, Finding)
        return Mark(k, "validation", "Proven slow" if finding is None or finding.proven else "Found healthy", text)
    if decision.kind == "change_point":
        point = value_as(decision, ChangePoint)
        if point is None:
            return None
        if point.direction == "faster":
            return Mark(k, "over", "Faster again", text) if point.tier == "confirmed" else None
        return Mark(k, "confirmed", "Confirmed", text) if point.tier == "confirmed" else Mark(k, "suspicion", "Suspicion", text)
    if decision.kind == "reconfiguration":
        change = value_as(decision, Reconfiguration)
        outcome = change.outcome if change else "applied"
        title = {"applied": "New layout", "reverted": "Reverted", "refused": "Change refused", "failed": "Change failed"}[outcome]
        return Mark(change.iteration if change else k, "revert" if outcome == "reverted" else "change", title, text)
    return None
