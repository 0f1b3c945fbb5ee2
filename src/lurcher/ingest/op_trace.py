"""Traces of a pipeline's operations, one row an operation of a worker: what `lurcher analyze` replays.

The columns are those of ByteDance-Seed/StragglerAnalysis (Apache-2.0; the artifact of "Understanding Stragglers in Large Model
Training Using What-if Analysis", OSDI 2025, arXiv 2505.05713). A worker is one stage of one replica, its tensor ranks together.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt

from lurcher.errors import UserError

Column = npt.NDArray[Any]


class TraceOp(IntEnum):
    """The operations of a step, in the order of their names in `OP_NAMES`."""

    FORWARD = 0
    BACKWARD = 1
    FORWARD_SEND = 2
    FORWARD_RECV = 3
    BACKWARD_SEND = 4
    BACKWARD_RECV = 5
    PARAMS_ALL_GATHER = 6
    GRADS_REDUCE_SCATTER = 7
    SEPARATE_GRADS_ALL_REDUCE = 8
    LAYERNORM_GRADS_ALL_REDUCE = 9
    EMBEDDING_GRADS_ALL_REDUCE = 10
    CLIP_GRADS = 11
    OPTIMIZER = 12
    GC = 13


OP_NAMES = (
    "forward-compute",
    "backward-compute",
    "forward-send",
    "forward-recv",
    "backward-send",
    "backward-recv",
    "params-all-gather",
    "grads-reduce-scatter",
    "separate-grads-all-reduce",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "optimizer-clip-main-grad",
    "optimizer",
    "gc",
)
COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id", "gmc")
"""A file's columns. Times in seconds, communication with its waiting; -1 where a model chunk or a micro-batch says nothing."""


class OpTrace(msgspec.Struct, frozen=True, eq=False):
    """The rows of a trace as columns of one length, in any order; times keep the precision they were written with.

    `seq` counts a worker's operations of one kind within a step. `chunk` is the model chunk within the stage, `model_chunk`
    within the model. `ranks_per_worker` are the GPUs that a worker stands for.
    """

    path: str
    format: str
    dp: Column
    stage: Column
    rank: Column
    step: Column
    op: Column  # TraceOp
    start_s: Column
    duration_s: Column
    seq: Column
    chunk: Column
    microbatch: Column
    model_chunk: Column
    ranks_per_worker: int = 1
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.op)

    def row_words(self, row: int) -> str:
        """Which operation a row is, for messages."""
        what = OP_NAMES[int(self.op[row])]
        return f"{what} {self.seq[row]} of dp{self.dp[row]}/stage{self.stage[row]} in step {self.step[row]}"


def op_codes(path: str, names: Column, places: Column) -> Column:
    """The TraceOp of each row: `names` are the kinds that occur, `places` each row's index into them. UserError for an unknown kind."""
    known = {name: code for code, name in enumerate(OP_NAMES)}
    unknown = [str(name) for name in names if name not in known]
    if unknown:
        used = [name for place, name in enumerate(names) if name not in known and (places == place).any()]
        if used:
            raise UserError(f"{path} has operations of kind {str(used[0])[:40]!r}; known are {', '.join(OP_NAMES)}")
    return np.array([known.get(name, 0) for name in names], np.uint8)[places]


def distinct(values: Column) -> npt.NDArray[np.intp]:
    """The whole numbers that occur in a column with a row or more, ascending. Replicas, stages and steps are few: no need to sort the rows."""
    low, high = int(values.min()), int(values.max())
    if not lie_close(low, high, len(values)):
        return np.array(sorted(set(values.tolist())), np.intp)
    seen = np.zeros(high - low + 1, np.bool_)
    seen[np.subtract(values, low, dtype=np.intp)] = True
    return np.flatnonzero(seen) + low


def lie_close(low: int, high: int, num_rows: int) -> bool:
    """Whether a table over all numbers from `low` to `high` is no larger than the rows are."""
    return high - low <= 4 * num_rows + 1024


def checked(trace: OpTrace) -> OpTrace:
    """The trace itself, if its rows can be times and places; else a UserError in one line that names the first bad row."""
    if not len(trace):
        raise UserError(f"{trace.path} has no operation; give a trace with at least one step")
    for values, what in ((trace.start_s, "start_ts"), (trace.duration_s, "duration")):
        bad = ~np.isfinite(values)
        if bad.any():
            _refuse(trace, int(bad.argmax()), f"{what} is {values[bad.argmax()]}", "a finite number of seconds")
    negative = trace.duration_s < 0
    if negative.any():
        row = int(negative.argmax())
        _refuse(trace, row, f"duration is {trace.duration_s[row]:.6g} s", "0 or more")
    for values, what in ((trace.dp, "dp_rank"), (trace.stage, "stage"), (trace.seq, "seq_id")):
        if (values < 0).any():
            row = int((values < 0).argmax())
            _refuse(trace, row, f"{what} is {values[row]}", "0 or more")
    return trace


def _refuse(trace: OpTrace, row: int, what: str, allowed: str) -> NoReturn:
    raise UserError(f"{trace.path}, row {row + 1} ({trace.row_words(row)}): {what}, allowed is {allowed}; correct the row or leave its step out")
