"""An operation trace to a verdict: which worker, stage, link or micro-batches make its steps slow, by how much, and what would help."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lurcher.analyze.trace_events import trace_events
from lurcher.analyze.trace_plans import trace_plans
from lurcher.analyze.trace_words import ranks_words, share_words, worker_name
from lurcher.analyze.values import Source, Throughput, Verdict, VerdictEvent
from lurcher.analyze.verdict import plan_section, verdict_of
from lurcher.ingest.op_trace import OpTrace
from lurcher.ingest.op_trace_read import is_trace, read_trace
from lurcher.localize.whatif import TraceAnalysis, analyse
from lurcher.localize.whatif_table import Array
from lurcher.localize.whatif_times import Floats
from lurcher.records import Plan

__all__ = ["analyze_trace", "explain_trace", "is_trace", "what_if_section"]


def analyze_trace(path: Path) -> tuple[Verdict, TraceAnalysis]:
    """The verdict on a trace file, and what it rests on; raises UserError, in one line, where the file is no whole trace."""
    begin = time.monotonic()
    verdict, analysis = explain_trace(read_trace(path))
    return msgspec.structs.replace(verdict, wall_s=time.monotonic() - begin), analysis


def explain_trace(trace: OpTrace) -> tuple[Verdict, TraceAnalysis]:
    """The verdict on a trace that is in memory, and what it rests on."""
    begin = time.monotonic()
    analysis = analyse(trace)
    events = trace_events(analysis)
    layout, plans = trace_plans(analysis) if events else (None, ())
    kind = verdict_of(events)
    found = analysis.what_if
    healthy_s, slow_s = float(analysis.causes.healed_s), float(found.measured_s.mean())
    verdict = Verdict(
        source=Source(
            path=trace.path,
            format=trace.format,
            num_iterations=analysis.num_steps,
            num_ranks=analysis.num_replicas * analysis.num_stages * trace.ranks_per_worker,
        ),
        verdict=kind,
        summary=_summary(events, plans, analysis),
        events=events,
        what_if=what_if_section(analysis),
        plan=plan_section(plans, layout),
        throughput=Throughput(
            healthy_iter_per_min=60 / healthy_s if analysis.slow else None if events else 60 / slow_s,
            slow_iter_per_min=60 / slow_s if events else None,
        ),
        wall_s=time.monotonic() - begin,
    )
    return verdict, analysis


def what_if_section(analysis: TraceAnalysis) -> dict[str, Any]:
    """The `what_if` section of a verdict: slowdowns S, S_t, S_w, M_W and M_S, and what making a part ideal would win at most.

    `won_s` is per step, `won_gpu_hours` over the trace's steps; workers that were not tried by themselves are left out of both.
    """
    found, steps = analysis.what_if, [str(step) for step in analysis.what_if.steps.tolist()]
    gpus = analysis.num_replicas * analysis.num_stages * analysis.dense.trace.ranks_per_worker
    won = {
        "by_optype": dict(zip(found.types, _won(found.no_delay_s, found.without_type_s).tolist(), strict=True)),
        "by_stage": _numbered(_won(found.no_delay_s, found.without_stage_s)),
        "by_worker": _workers(_won(found.no_delay_s, found.without_worker_s)),
    }
    hours = gpus * analysis.num_steps / 3600
    return {
        "slowdown": found.slowdown,
        "launch_slowdown": found.launch_slowdown,
        "by_optype": dict(zip(found.types, found.ratios(found.only_type_s).tolist(), strict=True)),
        "by_stage": _numbered(found.ratios(found.only_stage_s)),
        "by_dp_rank": _numbered(found.ratios(found.only_dp_s)),
        "by_worker": _workers(found.ratios(found.only_worker_s)),
        "m_w": found.m_w.share,
        "m_s": found.m_s.share,
        "m_w_workers": [worker_name(dp, stage) for dp, stage in found.worst],
        "per_step_slowdown": dict(zip(steps, (found.no_delay_s / found.ideal_s).tolist(), strict=True)),
        "time_s": {"actual": float(found.measured_s.mean()), "no_delay": float(found.no_delay_s.mean()), "ideal": found.ideal_s},
        "won_s": won,
        "won_gpu_hours": {key: {name: value * hours for name, value in some.items()} for key, some in won.items()},
        "causes": {"slow_workers": analysis.causes.workers_won_s, **{share.cause: share.won_s for share in analysis.causes.shares}},
    }


def _won(present_s: Floats, without_s: Floats) -> Floats:
    return np.asarray(present_s.mean() - without_s.mean(axis=-1))


def _numbered(values: Array) -> dict[str, float]:
    return {str(i): float(value) for i, value in enumerate(values)}


def _workers(values: Array) -> dict[str, float]:
    return {worker_name(dp, stage): float(value) for dp, row in enumerate(values) for stage, value in enumerate(row) if np.isfinite(value)}


def _summary(events: Sequence[VerdictEvent], plans: Sequence[Plan], analysis: TraceAnalysis) -> str:
    """One sentence: hardware or work, which part, what it costs, how sure, and what would help."""
    found, causes = analysis.what_if, analysis.causes
    if not events:
        return f"Healthy: nothing slows down the {analysis.num_steps} steps worth a word; a step takes x{found.slowdown:.2f} of what it takes with all alike."
    kind = verdict_of(events)
    begin = {"fail_slow": "A real fault, not the workload", "not_hardware": "Not hardware"}.get(kind, "Not enough evidence")
    parts = [f"{begin}: {_what(events[0], analysis)}"]
    parts += [f"besides, {_what(event, analysis)}" for event in events[1:3]]
    if kind == "fail_slow":
        sure = min((suspect.confidence for event in events for suspect in event.suspects if event.kind == "fail_slow"), default=0.0)
        parts.append(f"no benchmark has tested it (confidence {sure:.2f})")
    elif kind == "not_hardware":
        parts.append("no worker stands out from its like")
    parts.append(f"a step takes {causes.no_delay_s:.2f} s, x{found.slowdown:.2f} of what it takes with all alike")
    lengths = next((share.alone_s for share in causes.shares if share.cause == "lengths"), 0.0)
    if any(event.cause == "sequence_imbalance" for event in events):
        parts.append(f"packing sequences so that micro-batches weigh alike would win up to {lengths:.2f} s")
    if plans:
        parts.append(f"recommended: {plans[0].actions[0].text}, predicted x{plans[0].gain:.2f} throughput")
    return "; ".join(parts) + "."


def _what(event: VerdictEvent, analysis: TraceAnalysis) -> str:
    if event.cause in ("compute", "host", "communication") and event.suspects:
        verb = {"compute": "computes too slowly", "host": "is held up by its host", "communication": "transfers too slowly"}[event.cause]
        who = " and ".join(_who(suspect) for suspect in event.suspects)
        always = event.end_iteration is None and event.onset_iteration == analysis.what_if.steps[0]
        span = f"in all {analysis.num_steps} steps" if always else _when(event)
        return f"{who} {verb} {span}, which costs {event.lost_s / analysis.num_steps:.2f} s a step"
    for share in analysis.causes.shares:
        if (share.cause, event.cause) in {("stage", "stage_imbalance"), ("lengths", "sequence_imbalance"), ("communication", "communication")}:
            return share_words(share, analysis)
    return event.evidence[0]


def _who(suspect: Any) -> str:
    component = suspect.component
    ranks = ranks_words(component.ranks)
    what = "worker" if component.kind == "group" else component.kind
    return f"{what} {component.id}{f' ({ranks})' if ranks and component.kind == 'group' else ''}, x{suspect.slowdown:.2f},"


def _when(event: VerdictEvent) -> str:
    if event.end_iteration is None:
        return f"since step {event.onset_iteration}"
    return f"from step {event.onset_iteration} to {event.end_iteration}"
