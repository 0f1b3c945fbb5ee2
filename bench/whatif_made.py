"""Made-up operation traces of 1F1B jobs, any size, with slow workers, long stages, uneven micro-batches and slow links; and a plain replay.

The order of things is scheduled here by its own small loop; the times are those that the graph's rules give them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lurcher.ingest.op_trace import OP_NAMES, OpTrace, TraceOp
from lurcher.localize.whatif_graph import Graph, build_graph
from lurcher.localize.whatif_order import walk_order
from lurcher.localize.whatif_replay import replay_spans
from lurcher.localize.whatif_table import OpTable
from lurcher.model.schedule import parse, schedule_text

FORWARD_S, BACKWARD_S, HOP_S, GATHER_S, REDUCE_S, CLIP_S, OPTIMIZER_S = 0.1, 0.2, 0.001, 0.02, 0.05, 0.003, 0.02
_KINDS = {
    TraceOp.FORWARD: FORWARD_S,
    TraceOp.BACKWARD: BACKWARD_S,
    TraceOp.PARAMS_ALL_GATHER: GATHER_S,
    TraceOp.GRADS_REDUCE_SCATTER: REDUCE_S,
    TraceOp.CLIP_GRADS: CLIP_S,
    TraceOp.OPTIMIZER: OPTIMIZER_S,
}


def made_trace(
    stages: int,
    replicas: int,
    microbatches: int,
    steps: int = 1,
    *,
    seed: int = 0,
    noise: float = 0.02,
    slow: Mapping[tuple[int, int], float] | None = None,
    slow_steps: slice = slice(None),
    stage_work: Sequence[float] = (),
    lengths: float = 0.0,
    slow_links: Mapping[tuple[int, int], float] | None = None,
) -> OpTrace:
    """A trace. `slow`: (replica, stage) -> slowdown in `slow_steps`; `stage_work`: factor per stage; `lengths`: scatter of the micro-batches'
    work, the same on all stages; `slow_links`: (replica, sending stage) -> factor on transfers from there."""
    rng = np.random.default_rng(seed)
    table = one_replica(stages, microbatches)
    graph = build_graph(table)
    shape = (replicas, steps)
    work = np.exp(rng.normal(0, lengths, (microbatches, *shape))) if lengths else np.ones((microbatches, 1, 1))
    own = np.empty((len(table), *shape), np.float32)
    for op, (stage, kind, microbatch) in enumerate(zip(table.stage, table.op, table.microbatch, strict=True)):
        own[op] = _KINDS.get(TraceOp(int(kind)), HOP_S) * np.maximum(rng.normal(1, noise, shape), 0.5)
        if kind in (TraceOp.FORWARD, TraceOp.BACKWARD):
            own[op] *= work[microbatch] * (stage_work[stage] if len(stage_work) else 1.0)
    for (dp, stage), factor in (slow or {}).items():
        own[(table.stage == stage) & np.isin(table.op, (0, 1)), dp, slow_steps] *= factor
    for (dp, sender), factor in (slow_links or {}).items():
        for group in graph.groups:
            if len(group) == 2 and table.op[group[0]] == TraceOp.FORWARD_SEND and table.stage[group[0]] == sender:
                own[list(group), dp] *= factor
    return timed_rows(graph, own)


def one_replica(stages: int, microbatches: int, chunks: int = 1) -> OpTable:
    """The operations of one replica with the times of a plain schedule, so that their order is known: 1F1B, or interleaved with several chunks a stage."""
    texts = schedule_text("interleaved" if chunks > 1 else "1f1b", stages, microbatches, chunks)
    todo = [[(action.kind, action.chunk * stages + stage, action.microbatch) for action in parse(text)] for stage, text in enumerate(texts)]
    rows: list[_Op] = []
    end: dict[tuple[str, int, int], float] = {}
    place, free, asked = [0] * stages, [0.0] * stages, dict.fromkeys([(s, kind) for s in range(stages) for kind in "FB"], 0.0)
    while any(at < len(line) for at, line in zip(place, todo, strict=True)):
        for stage, line in enumerate(todo):
            while place[stage] < len(line):
                kind, chunk, m = line[place[stage]]
                source = chunk - 1 if kind == "F" else chunk + 1
                if 0 <= source < stages * chunks and (kind, source, m) not in end:
                    break
                start = max(free[stage], end.get((kind, source, m), 0.0))
                free[stage] = end[kind, chunk, m] = start + (FORWARD_S if kind == "F" else BACKWARD_S)
                rows += _of_chunk(stage, stages, stages * chunks, kind, chunk, m, (start, free[stage], asked[stage, kind]))
                asked[stage, kind] = free[stage]
                place[stage] += 1
    last = max(free)
    for stage in range(stages):
        rows += [(stage, int(TraceOp.PARAMS_ALL_GATHER), chunk, -1, -1, 0.0, 0.0) for chunk in range(chunks)]
        rows += [(stage, int(TraceOp.GRADS_REDUCE_SCATTER), chunk, -1, -1, last + chunk / chunks, last + chunk / chunks) for chunk in range(chunks)]
        rows += [(stage, int(kind), -1, -1, -1, last + at, last + at) for at, kind in ((1, TraceOp.CLIP_GRADS), (2, TraceOp.OPTIMIZER))]
    return _table(rows)


_Op = tuple[int, int, int, int, int, float, float]  # stage, op, chunk, micro-batch, model chunk, start, end


def _of_chunk(stage: int, stages: int, num_chunks: int, kind: str, chunk: int, m: int, times: tuple[float, float, float]) -> list[_Op]:
    """A pass with the transfers before and after it; `times` are its start and end, and when its receive can begin."""
    compute, send, receive, step = (
        (TraceOp.FORWARD, TraceOp.FORWARD_SEND, TraceOp.FORWARD_RECV, 1)
        if kind == "F"
        else (TraceOp.BACKWARD, TraceOp.BACKWARD_SEND, TraceOp.BACKWARD_RECV, -1)
    )
    start, end, asked = times
    rows: list[_Op] = [(stage, int(compute), chunk // stages, m, chunk, start, end)]
    if 0 <= chunk + step < num_chunks:
        rows.append((stage, int(send), -1, -1, -1, end, end))
    if 0 <= chunk - step < num_chunks:
        rows.append((stage, int(receive), -1, -1, -1, asked, start))
    return rows


def _table(rows: list[_Op]) -> OpTable:
    """Numbered in the order in which they were scheduled, each kind on each stage for itself."""
    numbers: dict[tuple[int, int], int] = {}
    seq = []
    for row in rows:
        seq.append(numbers.get(row[:2], 0))
        numbers[row[:2]] = seq[-1] + 1
    order = sorted(range(len(rows)), key=lambda i: (*rows[i][:2], seq[i]))
    stage, op, chunk, microbatch, model_chunk = (np.array([rows[i][column] for i in order], np.intp) for column in range(5))
    start_s, end_s = (np.array([rows[i][column] for i in order]) for column in (5, 6))
    return OpTable("made up", stage, op, np.array([seq[i] for i in order], np.intp), chunk, microbatch, model_chunk, start_s, end_s)


def timed_rows(graph: Graph, own: np.ndarray) -> OpTrace:
    """The rows that these own times give: an operation starts when what it waits for has ended, and its duration includes its waiting."""
    table = graph.table
    num, replicas, steps = own.shape
    order = walk_order(graph, np.ones(num, bool))
    _, ends = replay_spans(order, lambda op: own[op], num, (replicas, steps))
    starts = np.zeros(own.shape, np.float32)
    for op, before in enumerate(graph.before):
        if before:
            starts[op] = ends[list(before)].max(axis=0)
    lengths = (ends - starts).astype(np.float32)
    del ends

    def spread(values: np.ndarray, kind: type) -> np.ndarray:
        return np.broadcast_to(np.asarray(values, kind), own.shape).reshape(-1)

    column = (slice(None), None, None)
    dp = np.arange(replicas)[None, :, None]
    stages = table.num_stages
    return OpTrace(
        path="made up",
        format="made up",
        dp=spread(dp, np.int16),
        stage=spread(table.stage[column], np.int16),
        rank=spread(table.stage[column] + stages * dp, np.int32),
        step=spread(np.arange(steps)[None, None, :], np.int32),
        op=spread(table.op[column], np.uint8),
        start_s=starts.reshape(-1),
        duration_s=np.maximum(lengths, 0).reshape(-1),
        seq=spread(table.seq[column], np.int32),
        chunk=spread(table.chunk[column], np.int8),
        microbatch=spread(table.microbatch[column], np.int32),
        model_chunk=spread(table.model_chunk[column], np.int16),
    )


def write(path: str | Path, trace: OpTrace) -> int:
    """Write a trace as Parquet and return its number of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = pa.DictionaryArray.from_arrays(pa.array(trace.op.astype(np.int8)), pa.array(OP_NAMES))
    columns = {"dp_rank": trace.dp, "stage": trace.stage, "rank": trace.rank, "step": trace.step, "optype": kinds, "start_ts": trace.start_s}
    columns |= {"duration": trace.duration_s, "seq_id": trace.seq, "mc": trace.chunk, "mb_id": trace.microbatch, "gmc": trace.model_chunk}
    pq.write_table(pa.table(columns), path)
    return len(trace)


def plain_replay(graph: Graph, own_s: np.ndarray) -> np.ndarray:
    """Seconds of each step by plain loops over operations, replicas and steps: slow, and sharing nothing with the vectorised walk."""
    num, replicas, steps = own_s.shape
    grouped = {op: group for group in graph.groups for op in group}
    synced = graph.synced()
    found = np.zeros(steps)
    for step in range(steps):
        seconds = own_s[:, :, step].tolist()
        end: list[list[float | None]] = [[None] * replicas for _ in range(num)]
        waiting = list(range(num))
        while waiting:
            later = []
            for op in waiting:
                group = grouped.get(op, (op,))
                needs = {earlier for member in group for earlier in graph.before[member]}
                if end[op][0] is not None:
                    continue
                if any(end[earlier][0] is None for earlier in needs):
                    later.append(op)
                    continue
                ready = [max((end[earlier][dp] or 0.0 for earlier in needs), default=0.0) for dp in range(replicas)]
                if synced[op]:
                    ready = [max(ready)] * replicas
                for member in group:
                    for dp in range(replicas):
                        end[member][dp] = ready[dp] + seconds[member][dp]
            if len(later) == len(waiting):
                raise ValueError("operations wait for each other in a circle")
            waiting = later
        last = [op for op in range(num) if graph.table.op[op] == TraceOp.OPTIMIZER] or range(num)
        found[step] = max(end[op][dp] or 0.0 for op in last for dp in range(replicas))
    return found
