"""One series of durations: residual, detector, periods, and what each period is called.

A lone series cannot tell hardware from work. It earns `fail_slow` only when its level comes back by itself, or when the
workload, or sibling runs of the same code, rule the work out; else a lasting step is a `level_shift` that nobody explains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from lurcher.analyze.beginning import from_start, rises_at_the_end
from lurcher.analyze.bursts import bursts
from lurcher.analyze.period import LEVEL_POINTS, Floats, Ints, Period, periods
from lurcher.analyze.restarts import Restart, restarts
from lurcher.analyze.shape import is_hump, is_ramp
from lurcher.analyze.spans import Spans
from lurcher.analyze.values import EventKind, Suspect, VerdictEvent
from lurcher.detect.default import DefaultDetector
from lurcher.records import Cause, ChangePoint

BURST_SAMPLES = 50
"""A period that is over within so many samples was not worth acting on."""
LEAST_SLOWDOWN = 1.04
"""Below this a step is a remark: the smallest real fault with a record cost 5.2 % (BLOOM), workloads wander by 3 %."""
SETTLED_SAMPLES = 30
"""A lone series whose level before is made of fewer samples than this is taken for warming up, whatever comes back later."""

Known = Literal["workload", "baseline", "rank", "nothing"]
"""What rules the work out as a cause: known workload, sibling runs, other ranks, or nothing."""


class Analysis(NamedTuple):
    """Events of one series, and every confirmed change behind them."""

    events: tuple[VerdictEvent, ...]
    changes: tuple[ChangePoint, ...]


class _Series(NamedTuple):
    """What all events of a series have in common."""

    iterations: Ints
    residuals: Floats
    durations_s: Floats
    known: Known
    stride: int
    suspects: tuple[Suspect, ...]
    cause: Cause
    level_points: int


def analyze_series(
    iterations: Ints,
    residuals: Floats,
    durations_s: Floats,
    known: Known,
    *,
    stride: int = 1,
    suspects: tuple[Suspect, ...] = (),
    cause: Cause = "unknown",
    least_samples: int = BURST_SAMPLES,
    level_points: int = LEVEL_POINTS,
    expects_one: bool = False,
) -> Analysis:
    """Events of one series.

    iterations: the input's own numbers, rising. residuals: observed / expected (or the durations, where nothing is expected);
    NaN unknown. durations_s: for what was lost. stride: iterations that one sample stands for. suspects and cause: whom a
    lasting period is ascribed to, where the caller knows. least_samples: shorter periods that end are bursts.
    level_points: samples before a period that its level before is the median of. expects_one: a healthy residual is known to
    be 1.0, so that the series may be slow from its first sample.
    """
    series = _Series(iterations, residuals, durations_s, known, stride, suspects, cause, level_points)
    detector = DefaultDetector()
    changes = tuple(c for c in (detector.update(float(v), int(i)) for i, v in zip(iterations, residuals, strict=True)) if c is not None)
    confirmed = tuple(c for c in changes if c.tier == "confirmed")
    found = list(periods(iterations, residuals, confirmed, level_points))
    arm = detector.config.arm_iterations
    if expects_one and (slow := from_start(iterations, residuals, confirmed, arm)) is not None:
        found = [slow, *(p for p in found if slow.last is not None and p.first > slow.last)]
    events = [_event(series, period, kind) for period in found if (kind := _kind(period, residuals, known, least_samples)) is not None]
    if np.isfinite(residuals).sum() < arm and (end := rises_at_the_end(iterations, residuals)) is not None:
        events.append(_event(series, end, "level_shift", f"with fewer than {arm} samples this is a remark: a longer log would tell"))
    events = _with_short_bursts(series, events, least_samples)
    if known != "rank":
        events += _restarts(series, events)
    return Analysis(tuple(sorted(events, key=lambda e: e.onset_iteration)), confirmed)


def _kind(period: Period, residuals: Floats, known: Known, least_samples: int) -> EventKind | None:
    """What a period is called; None where it is too small to be called anything."""
    over = period.last is not None
    length = (len(residuals) - 1 if period.last is None else period.last) - period.first + 1
    if over and length < least_samples:
        return "burst"
    if is_ramp(residuals, period) or (known == "nothing" and is_hump(residuals, period)):
        return "drift"
    if period.slowdown < LEAST_SLOWDOWN:
        return None
    if known != "nothing" or (over and period.first >= SETTLED_SAMPLES):
        return "fail_slow"
    return "level_shift"


def _with_short_bursts(series: _Series, events: Sequence[VerdictEvent], longest: int) -> list[VerdictEvent]:
    """The events, and bursts that none of them covers; one that the input ends in may be the begin of anything.

    What is high enough to be a burst is certain before the detector is, and then the event was known from then on.
    """
    told, spans = list(events), Spans(events)
    for burst in bursts(series.residuals, longest):
        period = Period(burst.first, burst.last, int(series.iterations[burst.detected]), burst.before, burst.level, None, ())
        event = _event(series, period, "level_shift" if burst.last is None else "burst")
        covering = spans.touched_by(event)
        for place in covering:
            sooner = min(told[place].detected_iteration, event.detected_iteration)
            told[place] = msgspec.structs.replace(told[place], detected_iteration=sooner)
        if not covering and (burst.last is None or burst.last - burst.first + 1 < longest):
            told.append(event)
    return sorted(told, key=lambda e: e.onset_iteration)


def _restarts(series: _Series, events: Sequence[VerdictEvent]) -> list[VerdictEvent]:
    """Restarts outside of what is over; one within a period that lasts may be its end."""
    spans = Spans([event for event in events if event.end_iteration is not None])
    said = [_restart_event(series, restart) for restart in restarts(series.residuals)]
    return [event for event in said if not spans.touched_by(event)]


def _restart_event(series: _Series, restart: Restart) -> VerdictEvent:
    begin = int(series.iterations[restart.first])
    inside = slice(restart.first, restart.last + 1)
    lost = series.durations_s[inside] * (1.0 - restart.before / series.residuals[inside])
    return VerdictEvent(
        kind="restart",
        onset_iteration=begin,
        end_iteration=int(series.iterations[restart.last]),
        detected_iteration=int(series.iterations[restart.detected]),
        slowdown=float(np.nanmax(series.residuals[inside]) / restart.before),
        lost_s=max(0.0, float(np.nansum(lost)) * series.stride),
        cause="unknown",
        evidence=(f"a slow sample, and x{restart.after / restart.before:.3f} of the level before from then on: a restart, which cured a creep",),
    )


def _event(series: _Series, period: Period, kind: EventKind, remark: str = "") -> VerdictEvent:
    last = len(series.iterations) - 1 if period.last is None else period.last
    inside = slice(period.first, last + 1)
    # Expected = observed / residual, scaled to the level before; what is above it is lost.
    lost = series.durations_s[inside] * (1.0 - period.before / series.residuals[inside])
    ascribed = kind == "fail_slow"
    return VerdictEvent(
        kind=kind,
        onset_iteration=int(series.iterations[period.first]),
        end_iteration=None if period.last is None else int(series.iterations[period.last]),
        detected_iteration=period.detected_iteration,
        slowdown=period.slowdown,
        lost_s=max(0.0, float(np.nansum(lost)) * series.stride),
        cause=series.cause if ascribed else "unknown",
        suspects=series.suspects if ascribed else (),
        evidence=tuple(said for said in (*_measured(series, period, last), _why(kind, period, series.known), remark) if said),
    )


def _measured(series: _Series, period: Period, last: int) -> list[str]:
    length = last - period.first + 1
    before = min(period.first, series.level_points)
    reference = f"the median of the {before} samples before" if before else "what it should be"
    said = [f"x{period.slowdown:.3f} of {reference}, over {length} samples"]
    return said + [f"from iteration {step.iteration} on x{step.after_s / period.before:.2f}" for step in period.steps[1:]]


def _why(kind: EventKind, period: Period, known: Known) -> str:
    if kind == "burst":
        return "over before acting could have paid"
    if kind == "drift":
        if period.last is not None:
            return "the level rises and falls again slowly: the model works more for a while, and no part broke and was mended"
        return "the level rises in a line, not in a step: software drift is likelier than a fault, and a restart often cures it"
    if kind == "level_shift":
        if period.last is not None:
            return f"it begins after {period.first} samples, when a job may still be warming up: nothing at hand tells that from a fault"
        return "it lasts, and nothing at hand tells hardware from work: workload columns, a sibling run or rank data would"
    if known == "nothing":
        return "the level came back by itself, as work by schedule does not"
    return {
        "workload": "the work is known, and rules itself out",
        "baseline": "sibling runs did not slow down here",
        "rank": "other ranks at the same iterations did not slow down",
    }[known]


def overlap(a: VerdictEvent, b: VerdictEvent) -> bool:
    """Whether two events have an iteration in common."""
    return (b.end_iteration is None or a.onset_iteration <= b.end_iteration) and (a.end_iteration is None or b.onset_iteration <= a.end_iteration)


def rates(durations_s: Floats, events: Sequence[VerdictEvent], iterations: Ints) -> tuple[float | None, float | None]:
    """Healthy and slow iterations per minute: medians outside all events, and inside the costliest fail_slow."""
    outside = np.isfinite(durations_s)
    for event in events:
        outside[_within(iterations, event)] = False
    slow = [event for event in events if event.kind == "fail_slow"]
    healthy = 60.0 / float(np.median(durations_s[outside])) if outside.any() else None
    if not slow:
        return healthy, None
    inside = durations_s[_within(iterations, max(slow, key=lambda event: event.lost_s))]
    inside = inside[np.isfinite(inside)]
    return healthy, 60.0 / float(np.median(inside)) if len(inside) else None


def _within(iterations: Ints, event: VerdictEvent) -> slice:
    """Places of the event's iterations, which rise."""
    end = len(iterations) if event.end_iteration is None else int(np.searchsorted(iterations, event.end_iteration, side="right"))
    return slice(int(np.searchsorted(iterations, event.onset_iteration)), end)
