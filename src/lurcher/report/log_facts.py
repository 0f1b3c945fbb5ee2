"""A log of others and its verdict, as the facts that its page is drawn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lurcher.ingest.log import Log
from lurcher.report.load import Series, job_series
from lurcher.report.verdict_view import EventView, VerdictView, view_verdict
from lurcher.report.words import event_name, iterations_text, ratio, seconds

MAX_EVENTS = 30
"""Events that a chart can hold; of more, the costliest."""
BEFORE = 50
"""Samples before an event that its level before is the median of."""


@dataclass(frozen=True)
class LogFacts:
    """One log. In `series`, `expected_s` is the level that each iteration had without the events: a step function."""

    log: Log
    verdict: VerdictView
    series: Series

    @property
    def event(self) -> EventView | None:
        """The event the page is about."""
        return self.verdict.main_event

    @property
    def total_s(self) -> float:
        """Seconds of the whole run, as far as they were logged."""
        return float(np.nansum(self.series.observed_s)) * self.log.stride

    @property
    def drawn(self) -> tuple[EventView, ...]:
        """The events that are drawn, in time's order."""
        costliest = sorted(self.verdict.events, key=lambda e: (e.kind == "restart", -(e.lost_s or 0.0)))[:MAX_EVENTS]
        return tuple(sorted(costliest, key=lambda e: e.onset_iteration or 0))

    def when(self, event: EventView) -> str:
        """The event's iterations in words."""
        return iterations_text(event.onset_iteration, event.end_iteration)

    def what(self, event: EventView) -> str:
        """The event in a few words, without its name."""
        if event.kind == "restart":
            return f"at {event.onset_iteration}: recognised, no fault"
        return f"{self.when(event)}: {ratio(event.slowdown)} as long{self.cost(event)}; confirmed at {event.detected_iteration}"

    def cost(self, event: EventView) -> str:
        """What it cost, where that is known in seconds."""
        return f", {seconds(event.lost_s)} lost" if event.lost_s else ""

    def name(self, event: EventView) -> str:
        """The kind of event, as a reader knows it."""
        return event_name(event.kind)


def log_facts(log: Log, verdict: Mapping[str, Any]) -> LogFacts:
    """The facts of one log; `verdict` as in verdict.json. UserError where it is of another shape."""
    view = view_verdict(dict(verdict), log.path) or VerdictView()
    plain = job_series(log.rows) if log.num_ranks > 1 else Series(log.rows["index"], log.rows["duration_s"], log.rows["duration_s"])
    return LogFacts(log, view, Series(plain.index, plain.observed_s, without_events(plain, view.events)))


def without_events(series: Series, events: Sequence[EventView]) -> np.ndarray:
    """The level of each iteration without the events: inside one its own median over its slowdown, between two the median of what lies there.

    An event of one rank among many may not show in the median over ranks; its level is then that of the samples before.
    """
    level = np.full(len(series.index), np.nan)
    inside = np.zeros(len(series.index), bool)
    for event in events:
        if event.onset_iteration is None or event.kind == "restart":
            continue
        span = places(series.index, event)
        inside[span] = True
        here, before, slowdown = (
            _median(series.observed_s[span]),
            _median(series.observed_s[max(0, span.start - BEFORE) : span.start]),
            event.slowdown or 1.0,
        )
        level[span] = before if here < before * (1.0 + slowdown) / 2.0 else here / slowdown
    edges = np.flatnonzero(np.diff(inside, prepend=not inside[0])) if len(inside) else np.array([], np.int64)
    for begin, end in zip(edges, [*edges[1:], len(inside)], strict=True):
        if not inside[begin]:
            level[begin:end] = _median(series.observed_s[begin:end])
    return level


def places(index: np.ndarray, event: EventView) -> slice:
    """Positions of the event's iterations in a rising index."""
    first = int(np.searchsorted(index, event.onset_iteration or 0))
    return slice(first, len(index) if event.end_iteration is None else int(np.searchsorted(index, event.end_iteration, side="right")))


def _median(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")
