"""Which rank, from rows that carry several: each against the others at the same iteration, and against its own history.

What a rank always was (another device, another stage) is in its own level and no event; what all ranks do alike cancels out.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from lurcher.analyze.beginning import WARMUP
from lurcher.analyze.period import Floats, median_or
from lurcher.analyze.rank_table import RankTable, against_the_others, table, worth_a_look
from lurcher.analyze.series import Analysis, analyze_series, overlap
from lurcher.analyze.values import Suspect, SuspectComponent, VerdictEvent
from lurcher.ingest.log import Log
from lurcher.localize.cohort import line_for
from lurcher.records import Cause

RANK_SAMPLES = 8
"""A rank's slow period that ends earlier is a burst: shorter than a job's, for its mates rule the work out."""
MIN_SLOWDOWN = 1.10
"""GREYHOUND: a component is suspect 10 % above its like."""
MIN_SHARE = 0.02
"""Of the iteration that a rank's excess must cost: input that takes 2 ms instead of 1 ms in a second is nothing."""
FIRST_SAMPLES = 30
"""Samples at the start of the input that tell who was slow from the start."""
LEAST_RANKS = 4
"""From so many ranks on one can stand out from the start; of fewer, who is the odd one is a matter of taste."""
NO_HISTORY_CONFIDENCE = 0.5
"""A rank that was never seen healthy may be slower for good reasons: other hardware, other work."""
STEP_TO_SIGMA = 1.4826 / 2**0.5
"""From the median step between two samples to their scatter, for independent normal ones."""
CAUSES: tuple[tuple[str, Cause], ...] = (("input_s", "input"), ("host_s", "host"), ("busy_s", "compute"), ("transfer_s", "communication"))
"""Columns that tell a cause, the more particular ones first."""


class _Column(NamedTuple):
    """One column of all ranks: its values, those over the median rank's, and their robust scatter; the durations beside it."""

    log: Log
    name: str
    cause: Cause
    values: RankTable
    ratios: Floats
    noise: Floats
    durations: RankTable


def rank_events(log: Log) -> tuple[VerdictEvent, ...]:
    """Slow periods of single ranks, each with its suspect; none where the input has one rank only."""
    if log.num_ranks < 2:
        return ()
    told = [(column, cause) for column, cause in CAUSES if column in log.columns]
    durations = table(log, "duration_s")
    found: list[VerdictEvent] = []
    for name, cause in told or [("duration_s", "unknown")]:
        column = _column(log, name, cause, durations)
        for event in (*_risen(column), *_from_start(column)):
            same = [other for other in found if overlap(event, other) and event.suspects[0].component == other.suspects[0].component]
            # One period of one rank is one event; busy time often contains input and host time.
            if not same:
                found.append(event)
    return tuple(found)


def _column(log: Log, name: str, cause: Cause, durations: RankTable) -> _Column:
    values = table(log, name) if name != "duration_s" else durations
    ratios = against_the_others(values.values)
    if cause == "compute" and "num_tokens" in log.columns:
        tokens = table(log, "num_tokens").values
        share = against_the_others(tokens)
        # A rank that got more work than the others is not slow.
        ratios = np.where(np.isfinite(share), ratios / share, ratios)
    with np.errstate(all="ignore"):
        # From one sample to the next: a rank that was slow for half of the time has two levels, and its scatter is not their distance.
        steps = np.abs(np.diff(ratios, axis=0))
        seen = np.isfinite(steps).any(axis=0)
        noise = np.zeros(ratios.shape[1])
        noise[seen] = STEP_TO_SIGMA * np.nanmedian(steps[:, seen], axis=0)
    return _Column(log, name, cause, values, ratios, noise, durations)


def _risen(column: _Column) -> list[VerdictEvent]:
    """Ranks that became slower than they were."""
    found = []
    for place in worth_a_look(column.ratios):
        line = line_for(len(column.values.ranks), float(column.noise[place]) / 2.0, MIN_SLOWDOWN)
        for event in _analysis(column, int(place)).events:
            if event.kind == "fail_slow" and event.slowdown > line and _matters(column, int(place), event):
                found.append(_told(column, int(place), event))
    return found


def _analysis(column: _Column, place: int) -> Analysis:
    seen = np.isfinite(column.ratios[:, place])
    return analyze_series(
        column.values.iterations[seen],
        column.ratios[seen, place],
        column.durations.values[seen, place],
        "rank",
        stride=column.log.stride,
        suspects=(_suspect(column, place, 0.8),),
        cause=column.cause,
        least_samples=RANK_SAMPLES,
        level_points=len(column.ratios),
    )


def _from_start(column: _Column) -> list[VerdictEvent]:
    """The one rank that is slower than all its like from the first sample on, if the like are even. Only busy time can tell it from waiting.

    This takes all ranks for one cohort. Where stages differ, more than one rank differs or the others are not even, and nobody is named.
    """
    if column.cause != "compute" or len(column.values.ranks) < LEAST_RANKS or len(column.ratios) < FIRST_SAMPLES:
        return []
    first = column.ratios[WARMUP:FIRST_SAMPLES]
    if not np.isfinite(first).all():
        return []
    levels = np.median(first, axis=0)
    place = int(np.argmax(levels))
    others = np.delete(levels, place)
    slowdown = float(levels[place] / np.median(others))
    line = line_for(len(levels), float(np.median(column.noise)) / 2.0, MIN_SLOWDOWN)
    uneven = float(np.abs(others / np.median(others) - 1.0).max())
    if slowdown <= line or uneven > (line - 1.0) / 2.0:
        return []
    analysis = _analysis(column, place)
    back = next((c for c in analysis.changes if c.direction == "faster" and c.after_s <= 1.0 + (slowdown - 1.0) / 4.0), None)
    iterations = column.values.iterations
    end = None if back is None else int(iterations[np.searchsorted(iterations, back.iteration) - 1])
    event = VerdictEvent(
        kind="fail_slow",
        onset_iteration=int(iterations[0]),
        end_iteration=end,
        detected_iteration=int(iterations[FIRST_SAMPLES - 1]),
        slowdown=slowdown,
        lost_s=0.0,
        cause=column.cause,
        suspects=(_suspect(column, place, NO_HISTORY_CONFIDENCE),),
        evidence=(
            f"rank {column.values.ranks[place]} is x{slowdown:.2f} of the median of {len(others)} other ranks from the first sample on, and these are even within {uneven:.1%}",
            "it was never seen healthy: this takes all ranks to be given the same work",
        ),
    )
    return [_told(column, place, event)] if _matters(column, place, event) else []


def _suspect(column: _Column, place: int, confidence: float) -> Suspect:
    rank = int(column.values.ranks[place])
    return Suspect(component=SuspectComponent(kind="rank", id=str(rank), ranks=(rank,)), cause=column.cause, slowdown=1.0, confidence=confidence)


def _span(column: _Column, event: VerdictEvent) -> slice:
    iterations = column.values.iterations
    end = len(iterations) if event.end_iteration is None else int(np.searchsorted(iterations, event.end_iteration, side="right"))
    return slice(int(np.searchsorted(iterations, event.onset_iteration)), end)


def _matters(column: _Column, place: int, event: VerdictEvent) -> bool:
    """Whether what the rank takes more is a share of the iteration worth a word."""
    span = _span(column, event)
    excess = column.values.values[span, place] * (1.0 - 1.0 / event.slowdown)
    return median_or(excess / column.durations.values[span, place], 0.0) >= MIN_SHARE


def _told(column: _Column, place: int, event: VerdictEvent) -> VerdictEvent:
    """The event of a rank as one of the job: slowdown and loss are the iteration's, the suspect keeps its own."""
    span = _span(column, event)
    alone = column.name == "duration_s"
    # Durations that differ between ranks are each rank's own; else all wait for each other, and the median is the job's.
    series = column.durations.values[:, place] if alone else _job(column.durations)
    before = median_or(series[: span.start], float("nan"))
    slowdown = median_or(series[span], float("nan")) / before if span.start else event.slowdown
    suspects = tuple(msgspec.structs.replace(suspect, slowdown=event.slowdown) for suspect in event.suspects)
    if not np.isfinite(slowdown):
        return msgspec.structs.replace(event, suspects=suspects)
    if not span.start:
        # Never seen healthy: what the iteration would take without it is not known, only what the rank itself takes more.
        lost = float(np.nansum(column.values.values[span, place] * (1.0 - 1.0 / event.slowdown)))
    else:
        lost = float(np.nansum(series[span] - before))
    return msgspec.structs.replace(event, slowdown=max(1.0, slowdown), lost_s=max(0.0, lost * column.log.stride), suspects=suspects)


def _job(durations: RankTable) -> Floats:
    with np.errstate(all="ignore"):
        some = np.isfinite(durations.values).any(axis=1)
        job = np.full(len(durations.iterations), np.nan)
        job[some] = np.nanmedian(durations.values[some], axis=1)
    return job
