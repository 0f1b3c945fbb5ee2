"""From a what-if analysis to events: slow workers, slow links and late hosts; stages and micro-batches of uneven work."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from lurcher.analyze.trace_words import SHARED_LENGTHS, long_stage, ranks_words, replay_words, share_words, slow_words, worker_name
from lurcher.analyze.values import EventKind, Suspect, SuspectComponent, VerdictEvent
from lurcher.localize.whatif import TraceAnalysis
from lurcher.localize.whatif_causes import Share
from lurcher.localize.whatif_workers import SlowWorker
from lurcher.records import Cause

LEAST_OF_EXCESS = 0.10
"""A cause is an event if it makes so much of what the step loses to all causes together ..."""
LEAST_OF_STEP = 0.02
"""... and so much of the step itself; less is a note."""
LEAST_LAUNCH = 0.05
"""Launch delays are an event if they take so much of the step."""
LEAST_SHAPE = 1.05
"""Below this S a step's shape is as good as it gets: the artifact of arXiv 2505.05713 looks no further below 1.03."""
LEAST_SLOWDOWN = 1.10
"""From this S on a step is slow even where no cause is large enough: then the cause is not known."""
LEAST_STAGE = 1.03
"""Work of a stage over the others' that is worth a remark."""
LEAST_SCATTER = 0.05
SAME_STEPS = 2
"""Workers that are slow in the same steps, give or take so many, are one event."""


def trace_events(analysis: TraceAnalysis) -> tuple[VerdictEvent, ...]:
    """The events of a trace, hardware first, then by what they cost; empty where nothing slows it down worth a word."""
    events = [*_worker_events(analysis), *_host_events(analysis)]
    notes = []
    for share in sorted(analysis.causes.shares, key=lambda share: -share.won_s):
        if _is_event(share, analysis):
            events.append(_shape_event(share, analysis))
        elif _is_remark(share, analysis):
            notes.append(f"a remark, not the cause: {share_words(share, analysis)}")
    if not events and analysis.what_if.slowdown >= LEAST_SLOWDOWN:
        events.append(
            _event(
                analysis, "level_shift", "unknown", analysis.causes.no_delay_s - analysis.what_if.ideal_s, ("no single cause explains a tenth of it",)
            )
        )
    if not events:
        return ()
    main = events[0]
    evidence = (*main.evidence, replay_words(analysis), *notes, *analysis.dense.trace.notes)
    return (msgspec.structs.replace(main, evidence=evidence), *events[1:])


def _is_event(share: Share, analysis: TraceAnalysis) -> bool:
    """Whether a cause that lies in the work, or in the network, deserves an event. Jitter of micro-batches, which is no length, needs more."""
    causes = analysis.causes
    if analysis.what_if.slowdown < LEAST_SHAPE and not analysis.slow:
        return False
    jitter = share.cause == "lengths" and causes.lengths_shared < SHARED_LENGTHS
    least = LEAST_OF_EXCESS if jitter else LEAST_OF_STEP
    return share.won_s >= LEAST_OF_EXCESS * (causes.no_delay_s - causes.rest_s) and share.won_s >= least * causes.no_delay_s


def _is_remark(share: Share, analysis: TraceAnalysis) -> bool:
    """What is no event but worth a word: a longer stage, for it is easily seen and taken for the cause; of the rest what costs half an event."""
    causes = analysis.causes
    if share.cause == "stage" and long_stage(analysis)[1] >= LEAST_STAGE:
        return True
    return share.won_s >= LEAST_OF_EXCESS / 2 * (causes.no_delay_s - causes.rest_s) and share.won_s >= LEAST_OF_STEP / 2 * causes.no_delay_s


def _event(
    analysis: TraceAnalysis,
    kind: EventKind,
    cause: Cause,
    won_s: float,
    evidence: tuple[str, ...],
    suspects: tuple[Suspect, ...] = (),
    span: tuple[int, int, int] | None = None,
) -> VerdictEvent:
    """An event over all steps, or over places `span` (first, end, confirmed); `won_s` is what it costs in the mean step of the whole trace."""
    steps, num = analysis.what_if.steps, analysis.num_steps
    first, end, confirmed = span or (0, num, num - 1)
    return VerdictEvent(
        kind=kind,
        onset_iteration=int(steps[first]),
        end_iteration=None if end == num else int(steps[end - 1]),
        detected_iteration=int(steps[confirmed]),
        slowdown=float(analysis.what_if.no_delay_s[first:end].mean() / analysis.what_if.ideal_s),
        lost_s=max(0.0, float(won_s * num)),
        cause=cause,
        suspects=suspects,
        evidence=evidence,
    )


def _worker_events(analysis: TraceAnalysis) -> Iterator[VerdictEvent]:
    """One event for workers that are slow in the same steps; what the healing of all wins is shared out by their excess."""
    left = list(analysis.slow)
    excess = sum((worker.slowdown - 1) * (worker.end - worker.first) for worker in left)
    while left:
        first = left[0]
        mine = [w for w in left if abs(w.first - first.first) <= SAME_STEPS and abs(w.end - first.end) <= SAME_STEPS]
        left = [worker for worker in left if worker not in mine]
        part = sum((worker.slowdown - 1) * (worker.end - worker.first) for worker in mine) / excess
        evidence = tuple(line for worker in mine for line in slow_words(worker, analysis))
        span = (min(w.first for w in mine), max(w.end for w in mine), max(w.confirmed for w in mine))
        suspects = tuple(_worker(analysis, worker.dp, worker.stage, "compute", worker.slowdown, _confidence(worker, analysis)) for worker in mine)
        yield _event(analysis, "fail_slow", "compute", part * analysis.causes.workers_won_s, evidence, suspects, span)


def _confidence(worker: SlowWorker, analysis: TraceAnalysis) -> float:
    """Less with few to compare with, near the threshold, or where a large part of the cohort is slow."""
    slow_like = sum(other.stage == worker.stage for other in analysis.slow)
    return 0.95 - 0.2 * (worker.num_like < 2) - 0.1 * (worker.score < 15) - 0.1 * (slow_like > 1 and 3 * slow_like > worker.num_like)


def _worker(analysis: TraceAnalysis, dp: int, stage: int, cause: Cause, slowdown: float, confidence: float) -> Suspect:
    component = SuspectComponent(kind="group", id=worker_name(dp, stage), ranks=analysis.ranks_of(dp, stage))
    return Suspect(component=component, cause=cause, slowdown=slowdown, confidence=confidence)


def _host_events(analysis: TraceAnalysis) -> Iterator[VerdictEvent]:
    found = analysis.what_if
    won_s = float(found.measured_s.mean() - found.no_delay_s.mean())
    if won_s < LEAST_LAUNCH * float(found.measured_s.mean()):
        return
    step_s = float(found.measured_s.mean())
    evidence = [
        f"operations start late though all they wait for is there: {won_s:.3f} of {step_s:.3f} s a step, launch slowdown x{found.launch_slowdown:.3f}"
    ]
    suspects = []
    for host in analysis.late:
        name = worker_name(host.dp, host.stage)
        evidence.append(f"{name} starts {host.delay_s:.3f} s a step late, its like {host.others_s:.3f} s: its host or its input holds it up")
        slowdown = step_s / max(step_s - (host.delay_s - host.others_s), 1e-9)
        suspects.append(_worker(analysis, host.dp, host.stage, "host", slowdown, 0.7))
    yield _event(analysis, "fail_slow" if suspects else "level_shift", "host", won_s, tuple(evidence), tuple(suspects))


def _shape_event(share: Share, analysis: TraceAnalysis) -> VerdictEvent:
    """A cause that lies in the work, or in the network."""
    words: tuple[str, ...] = (share_words(share, analysis),)
    if share.cause == "stage":
        return _stage_event(share, analysis, words)
    if share.cause == "lengths":
        known = analysis.causes.lengths_shared >= SHARED_LENGTHS and analysis.causes.lengths_scatter >= LEAST_SCATTER
        why = () if known else ("forward and backward passes do not agree, so sequence lengths are not the reason",)
        return _event(analysis, "level_shift", "sequence_imbalance" if known else "unknown", share.won_s, (*words, *why))
    suspects = []
    for link in analysis.links:
        ends = tuple(sorted({*analysis.ranks_of(link.dp, link.sender), *analysis.ranks_of(link.dp, link.receiver)}))
        component = SuspectComponent(kind="link", id=f"{worker_name(link.dp, link.sender)}-{worker_name(link.dp, link.receiver)}", ranks=ends)
        suspects.append(Suspect(component=component, cause="communication", slowdown=link.slowdown, confidence=0.7))
        words = (
            *words,
            f"{link.kind} over {component.id} takes {link.transfer_s:.4f} s, the same of other replicas {link.others_s:.4f} s, waiting taken off",
        )
    return _event(analysis, "fail_slow" if suspects else "level_shift", "communication", share.won_s, words, tuple(suspects))


def _stage_event(share: Share, analysis: TraceAnalysis, words: tuple[str, ...]) -> VerdictEvent:
    """Work by design if several replicas agree; a lone replica's long stage could be slow hardware just as well."""
    stage, factor = long_stage(analysis)
    if analysis.num_replicas < 2:
        return _event(
            analysis, "level_shift", "unknown", share.won_s, (*words, "with one replica nothing tells a slow stage's hardware from its work")
        )
    ranks = tuple(sorted({rank for dp in range(analysis.num_replicas) for rank in analysis.ranks_of(dp, stage)}))
    like = float(np.exp(np.abs(np.diff(np.log(analysis.work.both_s[stage].mean(axis=(0, 2))))).max()))
    suspect = Suspect(component=SuspectComponent(kind="stage", id=str(stage), ranks=ranks), cause="stage_imbalance", slowdown=factor, confidence=0.9)
    more = (f"{ranks_words(ranks)} do the same: replica to replica it differs by x{like:.2f} at most",) if ranks else ()
    return _event(analysis, "level_shift", "stage_imbalance", share.won_s, (*words, *more), (suspect,))
