"""A log of somebody's job to a verdict."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import numpy as np

from lurcher.analyze.expected import job_series, residuals
from lurcher.analyze.rank_table import rank_table
from lurcher.analyze.ranks import rank_events
from lurcher.analyze.recurring import periodic_work
from lurcher.analyze.series import analyze_series, rates
from lurcher.analyze.values import Source, Throughput, Verdict, VerdictEvent
from lurcher.analyze.verdict import build_verdict
from lurcher.errors import UserError
from lurcher.ingest.log import Log

NEAR_SAMPLES = 20
"""A lasting event of the job that begins so many samples after a rank's, or before it, is the rank's."""


def analyze_log(log: Log, baselines: Sequence[Log] = ()) -> Verdict:
    """The verdict on one log; `baselines` are logs of sibling runs. UserError where the log has no duration at all."""
    begin = time.monotonic()
    job = job_series(log)
    if not np.isfinite(job.durations_s).any():
        raise UserError(f"{log.path} has no usable duration in {len(job.iterations)} iterations; it needs a time per iteration above 0")
    expected = residuals(log, job, baselines)
    by_job = analyze_series(
        job.iterations, expected.values, job.durations_s, expected.known, stride=log.stride, expects_one=expected.known == "baseline"
    )
    of_job = [msgspec.structs.replace(e, evidence=(*e.evidence, expected.reason)) for e in by_job.events]
    events = _merge(of_job, rank_events(rank_table(log), job.durations_s), NEAR_SAMPLES * log.stride, several_ranks=log.num_ranks > 1)
    events = (*events, *_restarts_in_the_input(log, events))
    events = tuple(msgspec.structs.replace(e, evidence=(*e.evidence, *log.notes)) for e in events)
    healthy, slow = rates(job.durations_s, events, job.iterations)
    if log.relative:
        healthy, slow = None, None
        events = tuple(_without_unit(log, e) for e in events)
    verdict = build_verdict(
        source=Source(path=log.path, format=log.format, num_iterations=len(job.iterations), num_ranks=log.num_ranks),
        events=events,
        throughput=Throughput(healthy_iter_per_min=healthy, slow_iter_per_min=slow),
        wall_s=time.monotonic() - begin,
    )
    said = periodic_work(job.iterations, expected.values)
    return msgspec.structs.replace(verdict, summary=f"{verdict.summary.removesuffix('.')}; {said}.") if said else verdict


def _without_unit(log: Log, event: VerdictEvent) -> VerdictEvent:
    """An event of durations without a unit. Where samples are taken every so many seconds, their share that was lost is known, else nothing is."""
    if log.format != "workers":
        return msgspec.structs.replace(event, lost_s=0.0, evidence=(*event.evidence, "durations have no unit: what was lost is not known in seconds"))
    num = np.unique(log.rows["index"])
    end = num[-1] if event.end_iteration is None else event.end_iteration
    samples = int(((num >= event.onset_iteration) & (num <= end)).sum())
    return msgspec.structs.replace(event, lost_s=float(samples * log.stride * (1.0 - 1.0 / event.slowdown)))


def _merge(by_job: Sequence[VerdictEvent], by_rank: Sequence[VerdictEvent], near: int, *, several_ranks: bool) -> tuple[VerdictEvent, ...]:
    """A rank's event explains the job's of the same time. With rank data at hand, what no rank explains is nobody's fault that can be named."""
    left = []
    for event in by_job:
        if any(_covers(other, event, near) for other in by_rank):
            continue
        shared = several_ranks and event.kind == "fail_slow"
        left.append(_of_all_ranks(event) if shared else event)
    return tuple(sorted((*left, *by_rank), key=lambda e: e.onset_iteration))


def _of_all_ranks(event: VerdictEvent) -> VerdictEvent:
    return msgspec.structs.replace(
        event, kind="level_shift", cause="unknown", suspects=(), evidence=(*event.evidence, "all ranks shift alike, so no part can be named")
    )


def _covers(rank: VerdictEvent, job: VerdictEvent, near: int) -> bool:
    """Most of the job's period lies in the rank's."""
    last = np.inf
    begin, end = job.onset_iteration, last if job.end_iteration is None else job.end_iteration
    rank_end = last if rank.end_iteration is None else rank.end_iteration
    shared = min(end, rank_end) - max(begin, rank.onset_iteration)
    return bool(shared >= 0.5 * (end - begin)) if np.isfinite(end) else rank.onset_iteration <= begin + near and rank.end_iteration is None


def _restarts_in_the_input(log: Log, events: Sequence[VerdictEvent]) -> list[VerdictEvent]:
    """Where the input itself goes back to an earlier iteration: a fact, not a guess."""
    known = {event.onset_iteration for event in events if event.kind == "restart"}
    return [
        VerdictEvent(
            kind="restart",
            onset_iteration=iteration,
            end_iteration=iteration,
            detected_iteration=iteration,
            slowdown=1.0,
            lost_s=0.0,
            cause="unknown",
            evidence=(f"the input goes back to iteration {iteration} and repeats what follows: the job was started again there",),
        )
        for iteration in log.restarts
        if iteration not in known
    ]
