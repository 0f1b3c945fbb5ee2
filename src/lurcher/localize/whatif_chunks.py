"""A trace's computation by micro-batch, and what of it the micro-batches themselves explain.

A long sequence takes longer on every stage that it passes. So the same micro-batch on the other stages of the replica says what
a stage should have taken, and a slow worker shows even where sequence lengths make its durations scatter by half.
"""

from __future__ import annotations

import msgspec
import numpy as np

from lurcher.errors import UserError
from lurcher.ingest.op_trace import TraceOp
from lurcher.localize.whatif_middle import median
from lurcher.localize.whatif_table import Ints, OpTable
from lurcher.localize.whatif_times import Floats, OpTimes

LEAST_R2 = 0.5
"""Other stages explain a stage's micro-batches if they account for so much of their variance within a worker."""
NEIGHBOURS = 4
"""A stage is compared with so many others, the nearest ones."""


class Chunks(msgspec.Struct, frozen=True, eq=False):
    """Seconds of each micro-batch on each stage, (P, M, D, T) over stages, micro-batches, replicas and steps, by phase."""

    forward_s: Floats
    backward_s: Floats

    @property
    def both_s(self) -> Floats:
        """Forward and backward pass together."""
        return self.forward_s + self.backward_s


def chunks(table: OpTable, times: OpTimes) -> Chunks:
    """The computation of each stage by micro-batch; UserError where the passes of a stage do not belong together."""
    passes = []
    for kind in (TraceOp.FORWARD, TraceOp.BACKWARD):
        rows = [_rows(table, stage, kind) for stage in range(table.num_stages)]
        passes.append(rows)
    counts = {len(rows) for phase in passes for rows in phase}
    if len(counts) > 1:
        raise UserError(
            f"{table.path}: stages compute {min(counts)} to {max(counts)} micro-batches each way; every stage computes each once each way"
        )
    forward_s, backward_s = (np.stack([times.real_s[rows] for rows in phase]) for phase in passes)
    for name, seconds in (("forward", forward_s), ("backward", backward_s)):
        idle = np.flatnonzero(seconds.sum(axis=(1, 2, 3)) <= 0)
        if len(idle):
            raise UserError(f"{table.path}: all {name} passes of stage {idle[0]} take 0 s; give their durations")
    return Chunks(forward_s, backward_s)


def _rows(table: OpTable, stage: int, kind: TraceOp) -> Ints:
    """A stage's passes of one kind in the order of micro-batch and chunk, the same on every stage."""
    mine = np.flatnonzero((table.stage == stage) & (table.op == kind))
    return mine[np.lexsort((table.chunk[mine], table.microbatch[mine]))]


def unexplained(logs: Floats, stage: int) -> list[Floats]:
    """What another stage leaves unexplained of the logarithms of a stage's durations, (M, D, T), once for each stage that explains anything.

    logs: (P, M, D, T). The other stage's logarithm is taken off with the slope that it has within a worker: a median over the
    replicas, which a few slow ones do not move. A stage whose own durations hardly follow it explains nothing, and is left out.
    """
    others = sorted((q for q in range(len(logs)) if q != stage), key=lambda q: (abs(q - stage), q))[:NEIGHBOURS]
    mine = _within(logs[stage])
    found = []
    for other in others:
        theirs = _within(logs[other])
        shared, mine_sq, theirs_sq = ((a * b).sum(axis=(0, 2)) for a, b in ((mine, theirs), (mine, mine), (theirs, theirs)))
        with np.errstate(divide="ignore", invalid="ignore"):
            r2, slope = shared * shared / (mine_sq * theirs_sq), shared / theirs_sq
        known = r2[~np.isnan(r2)]
        if len(known) and median(known) >= LEAST_R2:
            found.append(logs[stage] - median(slope[~np.isnan(slope)]) * logs[other])
    return found


def _within(logs: Floats) -> Floats:
    return np.asarray(logs - logs.mean(axis=(0, 2), keepdims=True))
