"""What would win back how much of a traced job's time: healthy hardware, other micro-batch counts, another cut of the layers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lurcher.analyze.trace_words import ranks_words, worker_name
from lurcher.layout import Layout, Replica, Stage
from lurcher.localize.whatif import TraceAnalysis
from lurcher.localize.whatif_causes import healing
from lurcher.localize.whatif_middle import median
from lurcher.localize.whatif_scaled import scaled_steps
from lurcher.model.critical_path import makespans_by_count
from lurcher.plan.edit import with_layers, with_replicas
from lurcher.plan.layer_choice import layer_choices
from lurcher.plan.split import min_max_split
from lurcher.records import Action, Plan

LAYERS_PER_STAGE = 8
"""A trace does not say how many layers a stage holds: cuts are told as if it held so many, all alike, and its other work as fixed."""
TRIED_CUTS = 16
LEAST_GAIN = 1.01
MOST_OF_EVEN = 4
"""A replica gets at most so many times the even share of micro-batches."""


def trace_plans(analysis: TraceAnalysis) -> tuple[Layout | None, tuple[Plan, ...]]:
    """The layout of the traced job, as far as the trace shows it, and what is better, best first; none where stages hold several chunks."""
    layout = _layout(analysis)
    if layout is None:
        return None, ()
    plans = [*_replaced(analysis, layout), *_split(analysis, layout), *_cut(analysis, layout)]
    better = [plan for plan in plans if plan.gain >= LEAST_GAIN]
    return layout, tuple(sorted(better, key=lambda plan: plan.predicted_s))


def _layout(analysis: TraceAnalysis) -> Layout | None:
    table, num_stages, num_dp = analysis.graph.table, analysis.num_stages, analysis.num_replicas
    if table.model_chunk.max() >= num_stages:
        return None
    per_worker, microbatches = analysis.dense.trace.ranks_per_worker, analysis.work.forward_s.shape[1]
    uniform = Layout.uniform(
        tp=per_worker, pp=num_stages, dp=num_dp, num_layers=LAYERS_PER_STAGE * num_stages, num_microbatches=num_dp * microbatches
    )
    ranks = {(d, s): analysis.ranks_of(d, s) for d in range(num_dp) for s in range(num_stages)}
    if len({rank for some in ranks.values() for rank in some}) < num_dp * num_stages * per_worker:
        return uniform
    replicas = tuple(
        Replica(tuple(Stage(ranks[d, s], stage.shares, stage.chunks) for s, stage in enumerate(replica.stages)), replica.microbatches)
        for d, replica in enumerate(uniform.replicas)
    )
    return Layout(uniform.num_layers, uniform.num_microbatches, replicas)


def _plan(analysis: TraceAnalysis, layout: Layout, action: Action, predicted_s: float, more: str = "") -> Plan:
    present_s = analysis.causes.no_delay_s
    reason = f"{action.text}: {predicted_s:.3f} s instead of {present_s:.3f} s a step, x{present_s / predicted_s:.2f} throughput{more}"
    return Plan(layout, (action,), present_s, predicted_s, min(analysis.causes.rest_s, predicted_s), 0.0, 0, reason)


def _replaced(analysis: TraceAnalysis, layout: Layout) -> Iterator[Plan]:
    """Healthy devices in place of the slow workers'."""
    if analysis.slow:
        names = ", ".join(worker_name(worker.dp, worker.stage) for worker in analysis.slow)
        ranks = ", ".join(filter(None, (ranks_words(analysis.ranks_of(worker.dp, worker.stage)) for worker in analysis.slow)))
        action = Action("restart", f"restart without the devices of {names}{f' ({ranks})' if ranks else ''}, on healthy ones")
        yield _plan(analysis, layout, action, analysis.causes.healed_s)


def _split(analysis: TraceAnalysis, layout: Layout) -> Iterator[Plan]:
    """Fewer micro-batches for replicas with slow workers; by the walk of mean micro-batches, which keeps what a step takes besides."""
    if not analysis.slow or len(layout.replicas) < 2:
        return
    forward_s, backward_s = (phase.mean(axis=(1, 3)).T for phase in (analysis.work.forward_s, analysis.work.backward_s))  # (D, P)
    even = layout.split[0]
    cap = min(layout.num_microbatches - len(layout.replicas) + 1, MOST_OF_EVEN * even)
    times = list(makespans_by_count("1f1b", forward_s, backward_s, cap))
    split = min_max_split(times, layout.num_microbatches, present=layout.split)
    present_s, split_s = (max(float(table[m]) for table, m in zip(times, counts, strict=True)) for counts in (layout.split, split))
    if split == layout.split:
        return
    words = f"micro-batches per replica {_range(layout.split)} -> {_range(split)}"
    predicted_s = analysis.causes.no_delay_s + split_s - present_s
    yield _plan(analysis, layout.with_split(split), Action("split", words), predicted_s, " (for micro-batches of mean length)")


def _cut(analysis: TraceAnalysis, layout: Layout) -> Iterator[Plan]:
    """Layers from the long stages to the others: proposed by `plan.layers`, and scored by replaying the trace with each cut."""
    if analysis.num_stages < 2:
        return
    heal = healing(analysis.slow, analysis.work.forward_s.shape)[:, None]
    phase_s = np.array([(phase * heal).mean(axis=(1, 2, 3)) for phase in (analysis.work.forward_s, analysis.work.backward_s)])  # (2, P)
    layer_s = np.minimum(median(phase_s, axis=1)[:, None], phase_s) / LAYERS_PER_STAGE
    fixed_s = phase_s - LAYERS_PER_STAGE * layer_s
    present = [LAYERS_PER_STAGE] * analysis.num_stages
    cuts = layer_choices(
        layer_s.sum(axis=0),
        fixed_s.sum(axis=0),
        [layout.num_layers] * len(present),
        layout.num_layers,
        layout.split[0],
        present=present,
        count=TRIED_CUTS,
    )
    if not cuts:
        return
    factors = (fixed_s + layer_s * np.array(cuts)[:, None, :]) / phase_s
    seconds = scaled_steps(analysis.graph, analysis.order, analysis.times, factors)
    best = int(np.argmin(seconds))
    if list(cuts[best]) == present:
        return
    replicas = tuple(with_layers(replica, cuts[best]) for replica in layout.replicas)
    words = f"layers per stage {'/'.join(map(str, present))} -> {'/'.join(map(str, cuts[best]))}"
    more = f", if a stage now holds {LAYERS_PER_STAGE} like layers and what is longer than the median stage is not layers"
    yield _plan(analysis, with_replicas(layout, replicas), Action("relayer", words), float(seconds[best]), more)


def _range(split: tuple[int, ...]) -> str:
    return "/".join(map(str, split)) if len(split) <= 8 else f"{min(split)} to {max(split)}"
