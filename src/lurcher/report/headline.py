"""The answers in the order in which people ask: a real fault or the workload? Which part? What was changed, what did it win?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lurcher.records import Finding, Place
from lurcher.report.change import Change
from lurcher.report.load import Facts, value_as
from lurcher.report.verdict_view import EventView, SuspectView
from lurcher.report.words import DASH, divide, percent, rate, ratio, seconds, whereabouts

TITLES = {
    "healthy": "Healthy",
    "fail_slow": "Fail-slow",
    "fail_stop": "Fail-stop",
    "not_hardware": "Not the hardware",
    "inconclusive": "Inconclusive",
    "none": "No verdict",
}
REAL_OR_NOT = {
    "healthy": "Neither: no lasting change was found.",
    "fail_slow": "A real fault.",
    "fail_stop": "A real fault: a rank stopped.",
    "not_hardware": "The workload: the work itself changed, no part is slow.",
    "inconclusive": "Cannot be said: there is not enough evidence.",
    "none": "Not judged: the run ended before a verdict was made.",
}


@dataclass(frozen=True)
class Tile:
    """A key figure. `tone` picks its colour: healthy, slow, mitigated or plain."""

    label: str
    value: str
    unit: str
    note: str
    tone: str = "plain"


@dataclass(frozen=True)
class Headline:
    """Verdict, its sentence, and the three answers."""

    verdict: str
    title: str
    summary: str
    answers: tuple[tuple[str, str], ...]


def headline(facts: Facts, change: Change | None) -> Headline:
    """The top of the report."""
    verdict = facts.verdict.verdict if facts.verdict else "none"
    known = verdict if verdict in TITLES else "inconclusive"
    summary = facts.verdict.summary if facts.verdict else _without_verdict(facts)
    answers = (
        ("A real fault, or the workload?", f"{REAL_OR_NOT[known]} {_proof(facts)}".strip()),
        ("Which part?", which_part(facts)),
        ("What was changed, and what did it win?", what_was_done(facts, change)),
    )
    return Headline(known, TITLES[known], summary, answers)


def _without_verdict(facts: Facts) -> str:
    last = f" after iteration {facts.series.index[-1]}" if len(facts.series.index) else " before its first iteration was recorded"
    ending = "The run is still going, or died" if not facts.ended else "The run ended"
    word = f" The last decision was: {facts.decisions[-1].reason}" if facts.decisions else ""
    return f"{ending}{last}; there is no verdict yet.{word}"


def _proof(facts: Facts) -> str:
    event = facts.event
    if event is None:
        return ""
    findings = [f for d in facts.decisions if d.kind == "finding" and (f := value_as(d, Finding)) and f.proven]
    if findings:
        proof = findings[0]
        where = "on the device" if proof.validated_by == "device" else "on the emulated device"
        return f"Proven by a benchmark {where}: {proof.reason}."
    if event.validated:
        return "Proven by a benchmark."
    return f"Evidence: {event.evidence[0]}." if event.evidence else ""


def which_part(facts: Facts) -> str:
    """The suspects with host, device, cause and slowdown."""
    event = facts.event
    if event is None:
        return "None." if facts.verdict else DASH
    if not event.suspects:
        return "No part stands out from the others."
    return "; ".join(suspect_text(facts.places, suspect) for suspect in event.suspects[:4]) + "."


def suspect_text(places: Mapping[int, Place], suspect: SuspectView) -> str:
    """One suspect in words, with the places of its ranks as far as they are known."""
    part = suspect.component
    name = f"{part.kind} {part.id}".strip()
    where = "; ".join(whereabouts(places[r]) for r in part.ranks[:4] if r in places)
    sure = f", {percent(suspect.confidence)} sure" if suspect.confidence is not None else ""
    takes = f"{suspect.cause} takes" if suspect.cause in ("compute", "communication", "input") else f"{suspect.cause} cause, takes"
    return f"{name}{f' ({where})' if where else ''}: {takes} {ratio(suspect.slowdown)} as long as it should{sure}"


def what_was_done(facts: Facts, change: Change | None) -> str:
    """The change with what it won, or why there was none."""
    if change is None:
        return "Nothing was changed." if facts.verdict else DASH
    if change.applied is None:
        return f"Nothing was changed; recommended: {change.text}, which should bring {ratio(change.plan.gain)} the throughput."
    won = f", which brought {ratio(change.gain_measured)} the throughput" if change.gain_measured else ""
    promised = f" ({ratio(change.plan.gain)} was predicted)" if change.gain_measured else ""
    back = f" Taken back at iteration {change.reverted.iteration}." if change.reverted else ""
    return f"From iteration {change.applied.iteration}: {change.text}{won}{promised}.{back}"


def tiles(facts: Facts, change: Change | None) -> list[Tile]:
    """The key figures; those that the run does not have show a dash."""
    verdict, event = facts.verdict, facts.event
    pace = verdict.throughput if verdict else None
    healthy = pace.healthy_iter_per_min if pace else None
    slow = pace.slow_iter_per_min if pace else None
    mitigated = pace.mitigated_iter_per_min if pace else None
    recovered = pace.recovered_iter_per_min if pace else None
    found = [
        Tile("Healthy", rate(healthy), "it/min", "before the fault" if event else "the whole run", "healthy"),
        Tile("Slow", rate(slow), "it/min", _share(slow, healthy), "slow"),
        Tile("Mitigated", rate(mitigated), "it/min", _share(mitigated, healthy), "mitigated"),
        Tile("Recovered", rate(recovered), "it/min", _share(recovered, healthy), "healthy"),
        _delay(facts, event),
        Tile("Lost", seconds(event.lost_s if event else None), "", "observed minus expected, summed"),
    ]
    if change:
        promised = percent(change.plan.gain - 1.0, signed=True)
        measured = percent(change.gain_measured - 1.0, signed=True) if change.gain_measured else DASH
        found.append(Tile("Gain measured", measured, "", f"predicted {promised}"))
        bound = divide(60.0, change.plan.bound_s)
        reached = (
            f"mitigated took {percent(change.gap_measured, signed=True)} time"
            if change.gap_measured is not None
            else f"the plan takes {percent(change.plan.gap, signed=True)} time"
        )
        found.append(Tile("Best possible", rate(bound), "it/min", reached))
    return found


def _share(value: float | None, healthy: float | None) -> str:
    part = divide(value, healthy)
    return f"{percent(part)} of healthy" if part is not None else "no such period"


def _delay(facts: Facts, event: EventView | None) -> Tile:
    if event is None or event.detected_iteration is None or event.onset_iteration is None:
        return Tile("Delay to detection", DASH, "", "nothing was detected")
    count = event.detected_iteration - event.onset_iteration
    took = float(facts.series.between(event.onset_iteration, event.detected_iteration + 1).sum())
    return Tile("Delay to detection", str(count), "iterations", f"{seconds(took)} from onset to confirmed")
