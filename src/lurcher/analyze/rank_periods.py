"""One slow period of some ranks: what the test over all ranks and the detector of a series say together, and what it cost the job."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from lurcher.analyze.confidence import NO_HISTORY, confidence_of
from lurcher.analyze.period import Floats, Ints, median_or
from lurcher.analyze.rank_groups import Slowed, component_of
from lurcher.analyze.rank_screen import Screening
from lurcher.analyze.rank_table import RankTable, row_medians
from lurcher.analyze.series import Analysis, analyze_series
from lurcher.analyze.values import Suspect, VerdictEvent
from lurcher.records import Cause

RANK_SAMPLES = 8
"""A rank's slow period that ends earlier is a burst: shorter than a job's, for its mates rule the work out."""
MIN_SHARE = 0.02
"""Of the iteration that a rank's excess must cost: input that takes 2 ms instead of 1 ms in a second is nothing."""
OWN_RISE = 0.5
"""Share of the rise over the others that must be the rank's own, over so many samples on either side: the rest may be that the others became faster."""
EDGE_SAMPLES = 16
SEVERAL = 256
"""Members of a group that its series is the median of, at most."""


class RankColumn(NamedTuple):
    """One column of all ranks: its values, what the test over all ranks says of it, and the job's time beside it."""

    table: RankTable
    name: str
    cause: Cause
    values: Floats
    screening: Screening
    job_s: Floats


class RankSeries(NamedTuple):
    """The ranks at some places as one: their ratio, their time in this column as it is and per unit of work, and the iterations' time."""

    slowed: Slowed
    ratios: Floats
    own_s: Floats
    per_work: Floats
    duration_s: Floats


def series_of(column: RankColumn, slowed: Slowed) -> RankSeries:
    """The series of some ranks: a rank's own, or the median of a group, each member over its own level before the group became slow."""
    places = slowed.places
    some = places if len(places) <= SEVERAL else tuple(places[i] for i in np.linspace(0, len(places) - 1, SEVERAL).astype(int))
    ratios = np.stack([column.screening.ratios(place) for place in some], axis=1)
    if len(some) > 1:
        before = max(1, min(alarm.onset for alarm in slowed.alarms))
        ratios = ratios / np.array([median_or(mine[:before], 1.0) for mine in ratios.T])
    own_s = row_medians(column.values[:, list(some)])
    per_work = row_medians(np.stack([column.screening.own(place) for place in some], axis=1))
    # Durations that differ between ranks are each rank's own; else all wait for each other, and the median is the job's.
    return RankSeries(slowed, row_medians(ratios), own_s, per_work, own_s if column.name == "duration_s" else column.job_s)


def analysis_of(column: RankColumn, series: RankSeries) -> Analysis:
    """What the detector of any series says of the ratios."""
    seen = np.isfinite(series.ratios)
    component = component_of(column.table.ranks[list(series.slowed.places)], column.cause)
    return analyze_series(
        column.table.iterations[seen],
        series.ratios[seen],
        series.duration_s[seen],
        "rank",
        stride=column.table.stride,
        suspects=(Suspect(component=component, cause=column.cause, slowdown=1.0, confidence=NO_HISTORY),),
        cause=column.cause,
        least_samples=RANK_SAMPLES,
        level_points=len(series.ratios),
    )


def certain_at(column: RankColumn, slowed: Slowed, event: VerdictEvent) -> int | None:
    """The iteration by which both tests had seen it, all ranks of it; None where the test over all ranks did not."""
    span = span_of(column.table.iterations, event)
    rows: dict[int, int] = {}
    for alarm in slowed.alarms:
        if alarm.first < span.stop and alarm.last >= span.start:
            rows[alarm.place] = min(rows.get(alarm.place, alarm.first), alarm.first)
    if len(rows) < len(slowed.places):
        return None
    return max(event.detected_iteration, int(column.table.iterations[max(rows.values())]))


def span_of(iterations: Ints, event: VerdictEvent) -> slice:
    """The rows that an event covers."""
    end = len(iterations) if event.end_iteration is None else int(np.searchsorted(iterations, event.end_iteration, side="right"))
    return slice(int(np.searchsorted(iterations, event.onset_iteration)), end)


def rose_itself(column: RankColumn, series: RankSeries, event: VerdictEvent) -> bool:
    """Whether the rank's own time per unit of work rose when the period began, and not the others' fell."""
    onset = span_of(column.table.iterations, event).start
    own, against = (step_at(values, onset) for values in (series.per_work, series.ratios))
    return not own < OWN_RISE * against


def step_at(values: Floats, onset: int) -> float:
    """By how much a series rises at a row, relative to what it was."""
    before = median_or(values[max(0, onset - EDGE_SAMPLES) : onset], float("nan"))
    return median_or(values[onset : onset + EDGE_SAMPLES], before) / before - 1.0


def matters(column: RankColumn, series: RankSeries, event: VerdictEvent) -> bool:
    """Whether what the ranks take more is a share of the iterations worth a word."""
    span = span_of(column.table.iterations, event)
    usual = median_or(series.ratios[: span.start], 1.0)
    excess = series.own_s[span] * (1.0 - usual / series.ratios[span])
    known = np.isfinite(excess) & np.isfinite(series.duration_s[span])
    return bool(known.any()) and float(excess[known].sum() / series.duration_s[span][known].sum()) >= MIN_SHARE


def told_of(column: RankColumn, series: RankSeries, event: VerdictEvent) -> VerdictEvent:
    """The event of a rank as one of the job: slowdown and loss are the iteration's, the suspect keeps its own."""
    span = span_of(column.table.iterations, event)
    known = np.isfinite(series.ratios)
    num_before = int(known[: span.start].sum())
    inside, before = series.duration_s[span], median_or(series.duration_s[: span.start], float("nan"))
    if num_before:
        slowdown, lost = median_or(inside, float("nan")) / before, float(np.nansum(inside - before))
    else:
        # Never seen healthy: what the iteration would take without it is not known, only what the rank itself takes more.
        slowdown, lost = event.slowdown, float(np.nansum(series.own_s[span] * (1.0 - 1.0 / event.slowdown)))
    if not np.isfinite(slowdown):
        slowdown, lost = event.slowdown, 0.0
    noise = float(np.median(column.screening.noise[list(series.slowed.places)]))
    confidence = confidence_of(event.slowdown, noise=noise, num_slow=int(known[span].sum()), num_before=num_before)
    return msgspec.structs.replace(
        event,
        slowdown=max(1.0, slowdown),
        lost_s=max(0.0, lost * column.table.stride),
        suspects=tuple(msgspec.structs.replace(s, slowdown=event.slowdown, confidence=confidence) for s in event.suspects),
        evidence=(*event.evidence, f"{len(column.table.ranks)} ranks were compared; a healthy sample of this part scatters by {noise:.1%}"),
    )
