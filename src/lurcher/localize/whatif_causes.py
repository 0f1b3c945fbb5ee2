"""What makes a trace's steps slow, in seconds: slow workers, stages of unequal work, micro-batches of unequal length, communication.

Each cause is taken away by itself and with the others, and the step replayed. Causes hide each other (a long last stage costs little
while long sequences cost more), so they are counted in turn: the one that wins most first, each next one on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from lurcher.ingest.op_trace import TraceOp
from lurcher.localize.whatif_chunks import Chunks
from lurcher.localize.whatif_graph import Graph
from lurcher.localize.whatif_middle import median
from lurcher.localize.whatif_order import Order
from lurcher.localize.whatif_replay import CostOf, replay
from lurcher.localize.whatif_times import Array, Floats, OpTimes
from lurcher.localize.whatif_workers import SlowWorker

ShapeCause = Literal["stage", "lengths", "communication"]
CAUSES: tuple[ShapeCause, ...] = ("stage", "lengths", "communication")
_OWN_WORK = frozenset((TraceOp.FORWARD, TraceOp.BACKWARD, TraceOp.OPTIMIZER, TraceOp.GC))
_AS_MEASURED = 1 << len(CAUSES)
"""Number of the case in which nothing is changed; the others are sums of 1 << (place of a cause that is taken away)."""


class Share(msgspec.Struct, frozen=True):
    """What taking a cause away wins, in seconds of the mean step, on top of those before it; and by itself, slow workers being healed."""

    cause: ShapeCause
    won_s: float
    alone_s: float


class Causes(msgspec.Struct, frozen=True, eq=False):
    """Mean steps: as replayed, with slow workers healed, with everything taken away; and the shares, in the order of what they win.

    `stage_factor` (P,) is each stage's work over the median of the others'; `lengths_scatter` the coefficient of variation
    of a stage's micro-batches, `lengths_shared` how much of it (0 to 1) forward and backward passes have in common.
    """

    no_delay_s: float
    healed_s: float
    rest_s: float
    shares: tuple[Share, ...]
    stage_factor: Floats
    lengths_scatter: float
    lengths_shared: float

    @property
    def workers_won_s(self) -> float:
        """What healthy workers instead of the slow ones would win."""
        return self.no_delay_s - self.healed_s


def find_causes(graph: Graph, order: Order, times: OpTimes, found: Chunks, slow: Sequence[SlowWorker]) -> Causes:
    """The causes of a trace's slowness; `slow` are its slow workers."""
    heal = healing(slow, found.forward_s.shape)
    phases = [found.forward_s * heal[:, None], found.backward_s * heal[:, None]]
    seconds = replay(order, _costs(graph, times, heal, phases), (_AS_MEASURED + 1, *times.real_s.shape[1:])).mean(axis=1)
    per_stage = sum(phase.mean(axis=(1, 2, 3)) for phase in phases)
    forward, backward = (phase / phase.mean(axis=(1, 2, 3), keepdims=True) for phase in phases)
    shared = np.corrcoef(forward.ravel(), backward.ravel())[0, 1] if forward.std() > 0 and backward.std() > 0 else 0.0
    return Causes(
        no_delay_s=float(seconds[_AS_MEASURED]),
        healed_s=float(seconds[0]),
        rest_s=float(seconds[_AS_MEASURED - 1]),
        shares=_shares(seconds),
        stage_factor=_beside_median(np.asarray(per_stage)),
        lengths_scatter=float(np.std(forward + backward) / 2),
        lengths_shared=float(max(0.0, shared)),
    )


def healing(slow: Sequence[SlowWorker], shape: tuple[int, ...]) -> Floats:
    """Factors (P, D, T) that bring slow workers' computation to the pace of their like; 1 elsewhere. `shape`: (P, M, D, T)."""
    heal = np.ones((shape[0], *shape[2:]))
    for worker in slow:
        heal[worker.stage, worker.dp, worker.first : worker.end] /= worker.slowdown
    return heal


def _shares(seconds: Floats) -> tuple[Share, ...]:
    shares, taken = [], 0
    left = {1 << place: cause for place, cause in enumerate(CAUSES)}
    while left:
        best = min(left, key=lambda bit: float(seconds[taken | bit]))
        shares.append(Share(left.pop(best), float(seconds[taken] - seconds[taken | best]), float(seconds[0] - seconds[best])))
        taken |= best
    return tuple(shares)


def _costs(graph: Graph, times: OpTimes, heal: Floats, phases: Sequence[Floats]) -> CostOf:
    """Seconds of an operation in every case, (cases, D, T).

    Stages are made equal by bringing each to the mean of all, phase by phase; lengths by giving every micro-batch of a stage
    the mean over micro-batches and replicas of that step, which keeps the step's work; communication by its ideal times.
    """
    stage, kind = graph.table.stage.tolist(), graph.table.op.tolist()
    level = [phase.mean(axis=(1, 2, 3)) for phase in phases]  # (P,)
    equal = [one.mean() / np.maximum(one, 1e-12) for one in level]
    even = [phase.mean(axis=(1, 2)) for phase in phases]  # (P, T)
    cases = np.arange(_AS_MEASURED)
    one_stage, one_length, quick = ((cases >> place & 1).astype(bool) for place in range(len(CAUSES)))
    rows = np.empty((_AS_MEASURED + 1, *times.real_s.shape[1:]))

    def cost_of(op: int) -> Array:
        real = rows[_AS_MEASURED] = times.real_s[op]
        if kind[op] in (TraceOp.FORWARD, TraceOp.BACKWARD):
            s, phase = stage[op], kind[op]
            rows[:_AS_MEASURED] = np.where(one_length[:, None, None], even[phase][s], real * heal[s])
            rows[:_AS_MEASURED][one_stage] *= equal[phase][s]
        elif kind[op] in _OWN_WORK:
            rows[:_AS_MEASURED] = real
        else:
            rows[:_AS_MEASURED] = np.where(quick[:, None, None], times.ideal_s[op], real)
        return rows

    return cost_of


def _beside_median(values: Floats) -> Floats:
    """Each value over the median of the others; 1 where there is no other."""
    if len(values) < 2:
        return np.ones(len(values))
    return np.array([value / median(np.delete(values, i)) for i, value in enumerate(values)])
