"""The last lines of a run: what was found, what was done, what it won, and where the report is."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

from lurcher.analyze.values import Suspect, Throughput, Verdict, VerdictEvent
from lurcher.records import Reconfiguration


def closing_lines(verdict: Verdict, report: Path, emulation: str = "") -> list[str]:
    """A handful of lines for a terminal; each phase, culprit and change that did not happen is left out."""
    lines = [verdict.summary, *_throughput(verdict.throughput)]
    for event in verdict.events:
        lines += [_row("culprit", _culprit(event, suspect)) for suspect in event.suspects]
    applied = [change for change in verdict.reconfigurations if change.outcome in ("applied", "reverted")]
    before = verdict.plan.present.layout.split if verdict.plan is not None and verdict.plan.present is not None else None
    for change in applied:
        more = [action.text for action in change.plan.actions if action.kind not in ("split", "keep")]
        lines.append(_row("layout" if more else "split", _change(change, before)))
        lines += [_row("", text) for text in more]
        before = change.plan.layout.split
    lines += _gain(applied, verdict.throughput)
    if verdict.copies is not None:
        copies = verdict.copies
        lines.append(
            _row("copies", f"{copies.num}, {copies.share:.1%} of the time; {copies.most_bytes / 1e6:.1f} MB of memory on the rank with most")
        )
    if verdict.verification is not None:
        lines.append(_row("verified" if verdict.verification.same else "DIFFERS", verdict.verification.reason))
    if emulation:
        lines.append(_row("emulation", emulation))
    lines.append(_row("report", str(report)))
    return lines


def _throughput(rates: Throughput) -> list[str]:
    known = {
        "healthy": rates.healthy_iter_per_min,
        "slow": rates.slow_iter_per_min,
        "mitigated": rates.mitigated_iter_per_min,
        "recovered": rates.recovered_iter_per_min,
    }
    told = [f"{name} {rate:.1f}" for name, rate in known.items() if rate is not None]
    return [_row("throughput", ", ".join(told) + " iterations/min")] if told else []


def _culprit(event: VerdictEvent, suspect: Suspect) -> str:
    places = ", ".join(f"{place.host} {place.device}" for place in suspect.component.places)
    span = (
        f"iterations {event.onset_iteration} to {event.end_iteration}"
        if event.end_iteration is not None
        else f"since iteration {event.onset_iteration}"
    )
    if event.kind in ("fail_stop", "hang"):
        return f"{suspect.component.kind} {suspect.component.id}{f' ({places})' if places else ''}: stopped in iteration {event.onset_iteration}"
    proof = "proven by benchmark" if event.validated else "not benchmarked"
    where = f" ({places})" if places else ""
    return f"{suspect.component.kind} {suspect.component.id}{where}: {suspect.cause} x{suspect.slowdown:.2f}, {span}, {proof}"


def _change(change: Reconfiguration, before: tuple[int, ...] | None) -> str:
    after = "/".join(map(str, change.plan.layout.split))
    moved = f"{'/'.join(map(str, before))} -> {after}" if before is not None else after
    return f"{moved} micro-batches per replica from iteration {change.iteration}, {change.outcome}, pause {change.pause_s:.2f} s"


def _gain(applied: list[Reconfiguration], rates: Throughput) -> list[str]:
    first = next((change for change in applied if change.outcome == "applied"), None)
    if first is None or not isfinite(first.plan.gain):
        return []
    slow, mitigated = rates.slow_iter_per_min, rates.mitigated_iter_per_min
    measured = f", measured x{mitigated / slow:.2f}" if slow and mitigated else ""
    return [_row("gain", f"predicted x{first.plan.gain:.2f}{measured}")]


def _row(name: str, text: str) -> str:
    return f"  {name:<10} {text}"
