"""The answers of a log's page: a real fault or the workload? Which part? What did it cost?"""

from __future__ import annotations

from lurcher.report.headline import REAL_OR_NOT, TITLES, Headline, Tile, suspect_text
from lurcher.report.log_facts import LogFacts
from lurcher.report.words import DASH, divide, percent, rate, ratio, seconds

CANNOT_NAME = "No part can be named from one series: columns per rank (rank, busy_s) would name it."


def log_headline(facts: LogFacts) -> Headline:
    """The top of the page."""
    verdict = facts.verdict.verdict if facts.verdict.verdict in TITLES else "inconclusive"
    answers = (
        ("A real fault, or the workload?", f"{REAL_OR_NOT[verdict]} {_evidence(facts)}".strip()),
        ("Which part?", _part(facts)),
        ("What did it cost?", _cost(facts)),
    )
    return Headline(verdict, TITLES[verdict], facts.verdict.summary, answers)


def log_tiles(facts: LogFacts) -> list[Tile]:
    """The key figures."""
    event, pace = facts.event, facts.verdict.throughput
    healthy, slow = (pace.healthy_iter_per_min, pace.slow_iter_per_min) if pace else (None, None)
    share = divide(slow, healthy)
    onset, seen = (event.onset_iteration, event.detected_iteration) if event else (None, None)
    delay = str(seen - onset) if onset is not None and seen is not None else DASH
    lost = [e.lost_s or 0.0 for e in facts.verdict.events if e.kind not in ("burst", "restart")]
    found = [
        Tile("Healthy", rate(healthy), "it/min", "outside all events", "healthy"),
        Tile("Slow", rate(slow), "it/min", f"{percent(share)} of healthy" if share else "no such period", "slow"),
    ]
    return [
        *(found if healthy else []),
        Tile("Slowdown", ratio(event.slowdown if event else None), "", facts.when(event) if event else "nothing lasting was found", "slow"),
        Tile("Lost", seconds(sum(lost) if lost else None), "", _share_lost(facts, sum(lost))),
        Tile("Delay to detection", delay, "iterations", "from onset to confirmed, without look-ahead"),
        Tile("Events", str(len(facts.verdict.events)), "", _kinds(facts)),
        Tile("Iterations", f"{len(facts.series.index):,}", "", f"every {facts.log.stride} has a line" if facts.log.stride > 1 else "each has a line"),
        Tile("Ranks", str(facts.log.num_ranks), "", "with rows of their own" if facts.log.num_ranks > 1 else "one series for the whole job"),
    ]


def _evidence(facts: LogFacts) -> str:
    event = facts.event
    return f"Evidence: {'; '.join(event.evidence[:2])}." if event and event.evidence else ""


def _part(facts: LogFacts) -> str:
    event = facts.event
    if event is None:
        return "None."
    if event.suspects:
        return "; ".join(suspect_text({}, suspect) for suspect in event.suspects[:4]) + "."
    return "No rank stands out from the others." if facts.log.num_ranks > 1 else CANNOT_NAME


def _cost(facts: LogFacts) -> str:
    event = facts.event
    if event is None:
        return "Nothing that lasts."
    lost = sum(e.lost_s or 0.0 for e in facts.verdict.events if e.kind == event.kind)
    number = sum(e.kind == event.kind for e in facts.verdict.events)
    if not lost:
        return f"{ratio(event.slowdown)} the time in {facts.when(event)}; in seconds it is not known."
    said = (
        f"{seconds(event.lost_s)} in {facts.when(event)}"
        if event.end_iteration is not None
        else f"{seconds(event.lost_s)} so far, {facts.when(event)}"
    )
    return f"{said}{f'; {seconds(lost)} in all {number} such periods' if number > 1 else ''}{_of_the_run(facts, lost)}."


def _of_the_run(facts: LogFacts, lost: float) -> str:
    share = divide(lost, facts.total_s)
    return "" if facts.log.relative or share is None else f", {share * 100:.1f} % of the run's {seconds(facts.total_s)}"


def _share_lost(facts: LogFacts, lost: float) -> str:
    return f"observed minus expected{_of_the_run(facts, lost)}" if lost else "nothing lasting was found"


def _kinds(facts: LogFacts) -> str:
    kinds = [facts.name(event).lower() for event in facts.verdict.events]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)) or "none"
