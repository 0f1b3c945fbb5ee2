"""How the verdicts of `lurcher analyze` are printed, and the exit code that they give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from lurcher.analyze.values import Verdict
from lurcher.analyze.verdict import to_json, verdicts_to_json
from lurcher.errors import EXIT_DONE, EXIT_FAIL_SLOW

SHOWN_RESTARTS = 5


def print_json(verdicts: Sequence[Verdict]) -> None:
    """One verdict as it is, several as one document."""
    click.echo((to_json(verdicts[0]) if len(verdicts) == 1 else verdicts_to_json(verdicts)).decode(), nl=False)


def exit_code_of(verdicts: Sequence[Verdict], asked: bool) -> int:
    """The exit code; a fail-slow gives one of its own if that was asked for."""
    return EXIT_FAIL_SLOW if asked and any(verdict.verdict == "fail_slow" for verdict in verdicts) else EXIT_DONE


def event_lines(verdict: Verdict) -> Iterator[str]:
    """A line an event; restarts share one, for some jobs have dozens."""
    restarts = [event for event in verdict.events if event.kind == "restart"]
    for event in verdict.events:
        if event.kind == "restart":
            continue
        span = f"{event.onset_iteration} to {event.end_iteration}" if event.end_iteration is not None else f"since {event.onset_iteration}"
        who = ", ".join(f"{s.component.kind} {s.component.id} x{s.slowdown:.3f} ({s.cause})" for s in event.suspects)
        yield f"  {event.kind:<11} {span}, x{event.slowdown:.3f}, {event.lost_s:.1f} s lost{f', {who}' if who else ''}; confirmed at {event.detected_iteration}"
    if restarts:
        shown = ", ".join(str(event.onset_iteration) for event in restarts[:SHOWN_RESTARTS])
        more = f" and {len(restarts) - SHOWN_RESTARTS} more" if len(restarts) > SHOWN_RESTARTS else ""
        yield f"  {'restart':<11} at {shown}{more}: recognised, no fault"
