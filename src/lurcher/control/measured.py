"""Rates for the planner out of what the live predictor has learned: the model in force, asked for what it would say of average work."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from lurcher.layout import LayerRange, Layout
from lurcher.model.cost import CostModel
from lurcher.model.rates import Rates
from lurcher.records import WORKLOAD

Floats = NDArray[np.float64]
LEAST_LAYER_S = 1e-9


def measured_rates(model: CostModel, layout: Layout, workload: NDArray[Any], slowdown: Mapping[int, float]) -> Rates:
    """Rates of healthy parts as fitted, and the given slowdowns (rank -> observed / healthy).

    `workload` are WORKLOAD rows of recent iterations; a micro-batch is taken to be their average. What a chunk costs with
    twice the layers less what it costs now is its layers; the rest is launch, with the sums that its ranks wait for in it.
    Where the first or last stages' layers cost more than the others', they have the embedding or the head. All ranks count as one
    node, tensor degrees as equally efficient, memory and bytes as unknown: the engine of today measures none of them.
    """
    average = _average(workload, layout.num_microbatches)
    once, twice = (_chunk_s(model, which, average) for which in (layout, _with_twice_the_layers(layout)))
    per_layer_s = (twice - once) * _whole_device(layout)[:, None]
    launch_s = max(0.0, float(np.median(2 * once - twice)))
    first, last, inner = _roles(layout)
    plain = min((first, last, inner), key=lambda stages: float(np.median(per_layer_s[stages].sum(axis=1))))
    forward_s, backward_s = np.maximum(np.median(per_layer_s[plain], axis=0), LEAST_LAYER_S)
    whole_s = float(forward_s + backward_s)
    return Rates(
        forward_s=float(forward_s),
        backward_s=float(backward_s),
        embed_layers=_extra(layout, per_layer_s, first, whole_s),
        head_layers=_extra(layout, per_layer_s, last, whole_s),
        launch_s=launch_s,
        overhead_s=max(0.0, model.overhead_s),
        ranks_per_node=max(layout.members) + 1,
        slowdown=dict(slowdown),
    )


def _average(workload: NDArray[Any], num_microbatches: int) -> NDArray[Any]:
    """One iteration of average micro-batches."""
    rows = np.zeros(num_microbatches, WORKLOAD)
    rows["microbatch"] = np.arange(num_microbatches)
    rows["num_tokens"], rows["sum_len_sq"] = np.rint(workload["num_tokens"].mean()), np.rint(workload["sum_len_sq"].mean())
    return rows


def _chunk_s(model: CostModel, layout: Layout, average: NDArray[Any]) -> Floats:
    """(stages, 2): forward and backward seconds of an average micro-batch on every stage of every replica that runs any, in order."""
    found: list[tuple[float, float]] = []
    for replica, times in zip(layout.replicas, model.chunk_times(layout, average), strict=True):
        if replica.microbatches:
            found += [(float(forward[0]), float(backward[0])) for forward, backward in zip(*times, strict=True)]
    return np.array(found)


def _with_twice_the_layers(layout: Layout) -> Layout:
    replicas = []
    for replica in layout.replicas:
        stages = [msgspec.structs.replace(s, chunks=tuple(LayerRange(2 * c.first, 2 * c.end) for c in s.chunks)) for s in replica.stages]
        replicas.append(msgspec.structs.replace(replica, stages=tuple(stages)))
    return msgspec.structs.replace(layout, num_layers=2 * layout.num_layers, replicas=tuple(replicas))


def _whole_device(layout: Layout) -> Floats:
    """Per working stage: from its chunk to one layer on a device that holds all of it; its fullest rank sets the pace."""
    return np.array([sum(s.shares) / max(s.shares) / s.num_layers for r in layout.replicas if r.microbatches for s in r.stages])


def _roles(layout: Layout) -> tuple[list[int], list[int], list[int]]:
    """Indices of the first, the last and the inner stages of the replicas that work; without inner ones, the ends stand for them."""
    first: list[int] = []
    last: list[int] = []
    inner: list[int] = []
    at = 0
    for replica in layout.replicas:
        if not replica.microbatches:
            continue
        num = len(replica.stages)
        first.append(at)
        last.append(at + num - 1)
        inner += range(at + 1, at + num - 1) if num > 2 else range(at, at + num)
        at += num
    return first, last, inner


def _extra(layout: Layout, per_layer_s: Floats, stages: list[int], whole_s: float) -> float:
    """Layers' worth of work that these end stages have beyond their own; 0 where an end is the whole pipeline."""
    if any(len(r.stages) == 1 for r in layout.replicas if r.microbatches):
        return 0.0
    num_layers = [s.num_layers for r in layout.replicas if r.microbatches for s in r.stages]
    return max(0.0, median((float(per_layer_s[i].sum()) / whole_s - 1.0) * num_layers[i] for i in stages))
