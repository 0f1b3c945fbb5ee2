"""Which rank, from rows that carry several: each against the others at the same iteration, and against its own history.

What a rank always was (another device, another stage) is in its own level and no event; what all ranks do alike cancels out. A rank is named if
two tests agree: the one over all ranks, whose threshold knows how many are watched (rank_screen.py), and the detector that watches any series,
which also says when the period began, grew and ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from lurcher.analyze.confidence import ALIKE, NO_HISTORY, is_smear, rose_alike
from lurcher.analyze.period import Floats, Ints, median_or
from lurcher.analyze.rank_groups import TOGETHER, Slowed, component_of, together
from lurcher.analyze.rank_periods import RankColumn, analysis_of, certain_at, matters, rose_itself, series_of, span_of, step_at, told_of
from lurcher.analyze.rank_screen import FIRST_SAMPLES, screen
from lurcher.analyze.rank_table import PARTS, RankTable
from lurcher.analyze.rank_work import work_of
from lurcher.analyze.series import Analysis, overlap
from lurcher.analyze.values import Suspect, VerdictEvent
from lurcher.localize.cohort import cohort_only
from lurcher.records import Cause

MIN_SLOWDOWN = 1.05
"""The smallest real fault with a record cost the job 5.2 % (BLOOM); GREYHOUND names a component from 1.10 on."""
LEAST_PART = 0.005
"""Of an iteration: a part that takes less counts as this much."""
LEAST_RANKS = 4
"""From so many ranks on one can stand out from the start; of fewer, who is the odd one is a matter of taste."""
CAUSES: tuple[tuple[str, Cause], ...] = (("input_s", "input"), ("host_s", "host"), ("busy_s", "compute"), ("transfer_s", "communication"))
"""Columns that tell a cause, the more particular ones first."""


class _Risen(NamedTuple):
    """An event, and the slowdown that it began with."""

    event: VerdictEvent
    first: float


def rank_events(table: RankTable, job_s: Floats) -> tuple[VerdictEvent, ...]:
    """Slow periods of single ranks, links and groups, each with its suspect; none where there is one rank only.

    job_s: seconds (or any unit) that the job's iterations took, one an iteration of the table.
    """
    if len(table.ranks) < 2:
        return ()
    told = [(name, cause) for name, cause in CAUSES if name in table.names]
    found: list[VerdictEvent] = []
    for name, cause in told or [("duration_s", "unknown")]:
        values = table.column(name)
        if name in PARTS:
            # Between nothing and next to nothing there is no ratio.
            values = np.maximum(values, LEAST_PART * median_or(job_s[:FIRST_SAMPLES], median_or(job_s, 1.0)))
        column = RankColumn(table, name, cause, values, screen(values, work_of(table) if cause == "compute" else None), job_s)
        for event in (*_risen(column), *_from_start(column)):
            if not any(_same(event, other, TOGETHER * table.stride) for other in found):
                found.append(event)
    return tuple(found)


def _same(event: VerdictEvent, other: VerdictEvent, near: int) -> bool:
    """Whether an event is another one told again: busy time often contains input and host time, and who transfers with a slow rank waits for it."""
    if not overlap(event, other):
        return False
    mine, others = set(event.suspects[0].component.ranks), set(other.suspects[0].component.ranks)
    if event.cause == other.cause:
        return mine == others
    echo = event.cause == "communication" and abs(event.onset_iteration - other.onset_iteration) <= near
    return echo or 2 * len(mine & others) > len(mine)


def _risen(column: RankColumn) -> list[VerdictEvent]:
    """Ranks, links and groups that became slower than they were."""
    found: list[_Risen] = []
    for slowed in _with_leaders(column, together(column.screening.alarms, column.cause)):
        series = series_of(column, slowed)
        for event in analysis_of(column, series).events:
            if event.kind != "fail_slow" or event.slowdown < MIN_SLOWDOWN or (certain := certain_at(column, slowed, event)) is None:
                continue
            if rose_itself(column, series, event) and matters(column, series, event):
                told = told_of(column, series, msgspec.structs.replace(event, detected_iteration=certain))
                found.append(_Risen(told, 1.0 + step_at(series.ratios, span_of(column.table.iterations, event).start)))
    return _compared(found, TOGETHER * column.table.stride)


def _with_leaders(column: RankColumn, sets: Sequence[Slowed]) -> Iterator[Slowed]:
    """The sets, and of each large one the ranks that rose more than twice as much as its median: what the rest waits for, if so."""
    for slowed in sets:
        yield slowed
        if len(slowed.places) == 1 or column.cause == "communication":
            continue
        onset = min(alarm.onset for alarm in slowed.alarms)
        rises = {place: step_at(column.screening.ratios(place), onset) for place in slowed.places}
        usual = 1.0 + median(rises.values())
        for place in (place for place, rise in rises.items() if is_smear(usual, [1.0 + rise])):
            yield Slowed((place,), tuple(alarm for alarm in slowed.alarms if alarm.place == place))


def _compared(risen: Sequence[_Risen], near: int) -> list[VerdictEvent]:
    """The events without those of ranks that only waited for another, and with less confidence in what rose alike with others."""
    told = []
    for event, first in risen:
        beside = [
            r for r in risen if r.event is not event and overlap(event, r.event) and abs(event.onset_iteration - r.event.onset_iteration) <= near
        ]
        if is_smear(first, [r.first for r in beside]):
            continue
        (suspect,) = event.suspects
        alike = rose_alike(first, [r.first for r in beside]) + (len(suspect.component.ranks) - 1) * (suspect.cause != "communication")
        said = [f"{alike + 1} ranks rose alike: they may share a cause, such as more work"] if alike else []
        for other in (r.event.suspects[0] for r in beside if is_smear(r.first, [first])):
            said.append(
                f"{other.component.kind} {other.component.id} is up x{other.slowdown:.2f} since then, less than half of it: taken for waiting"
            )
        suspects = (msgspec.structs.replace(suspect, confidence=min(suspect.confidence, ALIKE if alike else 1.0)),)
        told.append(msgspec.structs.replace(event, suspects=suspects, evidence=(*event.evidence, *said)))
    return told


def _from_start(column: RankColumn) -> list[VerdictEvent]:
    """Ranks that are slower than all their like from the first sample on, if the like are even. Only busy time can tell that from waiting.

    The layout is not known, so all ranks are one cohort. Where stages differ, more than a few ranks differ, and nobody is named.
    """
    table, screening = column.table, column.screening
    if column.cause != "compute" or len(table.ranks) < LEAST_RANKS or not screening.references:
        return []
    noise = median_or(screening.start_noise, 0.0) / FIRST_SAMPLES**0.5
    per_unit = {int(rank): float(level) for rank, level in zip(table.ranks, screening.start, strict=True)}
    found = []
    for suspicion in cohort_only(per_unit, None, noise)[0]:
        place = int(np.searchsorted(table.ranks, suspicion.component.ranks[0]))
        series = series_of(column, Slowed((place,), ()))
        event = VerdictEvent(
            kind="fail_slow",
            onset_iteration=int(table.iterations[screening.begin]),
            end_iteration=_end_of_first(table.iterations, analysis_of(column, series), suspicion.slowdown),
            detected_iteration=int(table.iterations[screening.begin + FIRST_SAMPLES - 1]),
            slowdown=suspicion.slowdown,
            lost_s=0.0,
            cause=column.cause,
            suspects=(Suspect(component=component_of(table.ranks[[place]], column.cause), cause=column.cause, slowdown=1.0, confidence=NO_HISTORY),),
            evidence=suspicion.evidence,
        )
        if matters(column, series, event):
            found.append(told_of(column, series, event))
    return found


def _end_of_first(iterations: Ints, analysis: Analysis, slowdown: float) -> int | None:
    """The last iteration before a series that is slow from the start came back to the level of the others; None while it did not."""
    back = next((c for c in analysis.changes if c.direction == "faster" and c.after_s <= 1.0 + (slowdown - 1.0) / 4.0), None)
    return None if back is None else int(iterations[np.searchsorted(iterations, back.iteration) - 1])
