"""A trace as dense arrays: the operations of one replica in one step, and their times in every replica and step.

All replicas and steps do the same operations, so that one dependency graph serves all (as in arXiv 2505.05713) and a
replay works on arrays. A trace in which a worker lacks an operation, or has one twice, is refused with its name.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from lurcher.errors import UserError
from lurcher.ingest.op_trace import OP_NAMES, Column, OpTrace, distinct, lie_close

Ints = npt.NDArray[np.intp]
Array = npt.NDArray[Any]


class OpTable(msgspec.Struct, frozen=True, eq=False):
    """The operations of one replica in one step, (O,) each, with their times in replica 0 of the first step."""

    path: str
    stage: Ints
    op: Ints
    seq: Ints
    chunk: Ints
    microbatch: Ints
    model_chunk: Ints
    start_s: Array
    end_s: Array

    def __len__(self) -> int:
        return len(self.op)

    @property
    def num_stages(self) -> int:
        """Pipeline stages."""
        return int(self.stage.max()) + 1

    def words(self, i: int) -> str:
        """Name of an operation, for messages."""
        return f"{OP_NAMES[self.op[i]]} {self.seq[i]} of stage {self.stage[i]}"


class DenseTrace(msgspec.Struct, frozen=True, eq=False):
    """Start and duration of each operation, (O, D, T) over D replicas and T steps, in seconds and the trace's own precision.

    `ranks` are the first global rank of each worker, (D, P).
    """

    trace: OpTrace
    table: OpTable
    steps: Array
    ranks: Ints
    start_s: Array
    duration_s: Array

    @property
    def measured_s(self) -> npt.NDArray[np.float64]:
        """How long each step took, (T,): from its first start to its last end."""
        ends = (self.start_s + self.duration_s).max(axis=(0, 1))
        return np.asarray(ends - self.start_s.min(axis=(0, 1)), np.float64)


def dense_trace(trace: OpTrace) -> DenseTrace:
    """The trace as arrays; raises UserError where replicas or steps differ in what they did."""
    num_dp, num_stages = _count(trace, trace.dp, "dp_rank"), _count(trace, trace.stage, "stage")
    steps, step = _numbered(trace.step)
    first = np.flatnonzero((trace.dp == 0) & (step == 0))
    if not len(first):
        raise UserError(f"{trace.path} has no row of dp_rank 0 in step {steps[0]}; give the rows of every replica in every step")
    table = _table(trace, first)
    place = _places(trace, table, num_stages)
    lane = trace.dp.astype(np.int64) * len(steps) + step
    shape = (len(table), num_dp, len(steps))
    slot = place * (num_dp * len(steps)) + lane
    _check_whole(trace, table, slot, shape, steps)
    arrays = []
    for values in (trace.start_s, trace.duration_s):
        array = np.empty(shape, values.dtype)
        array.reshape(-1)[slot] = values
        arrays.append(array)
    ranks = np.zeros((num_dp, num_stages), np.intp)
    ranks[trace.dp, trace.stage] = trace.rank
    return DenseTrace(trace, table, steps, ranks, arrays[0], arrays[1])


def _count(trace: OpTrace, values: Column, name: str) -> int:
    """How many there are; they are numbered from 0 without a gap."""
    found = distinct(values)
    if len(found) != found[-1] + 1:
        missing = int(np.flatnonzero(found != np.arange(len(found)))[0])
        raise UserError(f"{trace.path} has no row of {name} {missing}, but of {name} {found[-1]}; give the rows of all, numbered from 0")
    return len(found)


def _numbered(step: Column) -> tuple[Array, Array]:
    """The steps in ascending order, and each row's place among them."""
    steps = distinct(step)
    first, last = int(steps[0]), int(steps[-1])
    if not lie_close(first, last, len(step)):
        return steps, np.searchsorted(steps, step)
    number = np.zeros(last - first + 1, np.intp)
    number[steps - first] = np.arange(len(steps))
    return steps, number[np.subtract(step, first, dtype=np.intp)]


def _table(trace: OpTrace, rows: Array) -> OpTable:
    """The operations of replica 0 in the first step."""
    rows = rows[np.lexsort((trace.seq[rows], trace.op[rows], trace.stage[rows]))]
    start, duration = trace.start_s[rows], trace.duration_s[rows]
    columns = (trace.stage, trace.op, trace.seq, trace.chunk, trace.microbatch, trace.model_chunk)
    stage, op, seq, chunk, microbatch, model_chunk = (column[rows].astype(np.intp) for column in columns)
    return OpTable(trace.path, stage, op, seq, chunk, microbatch, model_chunk, start - start.min(), start + duration - start.min())


def _places(trace: OpTrace, table: OpTable, num_stages: int) -> Array:
    """The table's row of each operation of the trace."""
    most = max(int(trace.seq.max()), int(table.seq.max())) + 1
    known = np.full(num_stages * len(OP_NAMES) * most, -1, np.int64)
    known[(table.stage * len(OP_NAMES) + table.op) * most + table.seq] = np.arange(len(table))
    place: Array = known[(trace.stage.astype(np.int64) * len(OP_NAMES) + trace.op) * most + trace.seq]
    if (place < 0).any():
        row = int((place < 0).argmax())
        raise UserError(
            f"{trace.path} has {trace.row_words(row)}, which dp0 in step {trace.step.min()} lacks; all replicas and steps need the same operations"
        )
    return place


def _check_whole(trace: OpTrace, table: OpTable, slot: Array, shape: tuple[int, int, int], steps: Array) -> None:
    """Each operation once in each replica and step."""
    seen = np.zeros(shape, np.uint8)
    seen.reshape(-1)[slot] = 1
    if not seen.all():
        op, dp, step = (int(i) for i in np.argwhere(seen == 0)[0])
        missing = int(np.count_nonzero(seen == 0))
        raise UserError(
            f"{trace.path} lacks {missing} operation{'s' * (missing > 1)}, the first {table.words(op)} of dp{dp} in step {steps[step]};"
            " give every worker's rows of every step, or leave that step out"
        )
    if len(slot) > seen.size:
        counts = np.bincount(slot, minlength=seen.size)
        row = int(np.flatnonzero(counts[slot] > 1)[1])
        raise UserError(f"{trace.path} has {trace.row_words(row)} twice (row {row + 1}); each operation has one row")
