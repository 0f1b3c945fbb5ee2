"""The event windows of a run directory as an operation trace: what the job's slow iterations did, chunk by chunk.

A worker is a stage of a replica: a chunk begins when its last tensor rank begins, and ends when its last one ends. Only such windows
are taken in which all replicas ran the same operations, as many micro-batches each, on the layout that the run began with.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lurcher.ingest.op_trace import OpTrace, TraceOp, checked
from lurcher.layout import Layout
from lurcher.records import Op, Place
from lurcher.runlog import RunReader

LABELS = (("slow", "suspect"), ("healthy",))
"""Windows that make a trace, the first kinds of which there is one: slow iterations are not mixed with healthy ones."""

_Row = tuple[int, int, int, int, int, float, float, int, int]  # step, dp, stage, op, seq, start, duration, micro-batch, first rank


def read_run_trace(path: Path) -> OpTrace | None:
    """The trace of a run's kept windows; None where there is none that can be replayed. UserError where the directory cannot be read."""
    reader = RunReader(path)
    layout = reader.header.layout
    if len(set(layout.split)) > 1 or layout.routes or any(not stage.ranks or len(stage.chunks) > 1 for _, _, stage in layout.stages()):
        return None
    kept = [(iteration, label, events) for iteration, label, events in reader.events() if len(events)]
    for labels in LABELS:
        windows = [(iteration, _window(iteration, events, layout, reader.header.places)) for iteration, label, events in kept if label in labels]
        rows = [row for _, found in windows for row in found]
        if rows:
            return checked(_trace(str(path), rows, layout))
    return None


def _trace(path: str, rows: Sequence[_Row], layout: Layout) -> OpTrace:
    step, dp, stage, op, seq, start, duration, microbatch, rank = (np.array(column) for column in zip(*rows, strict=True))
    computes = np.isin(op, (TraceOp.FORWARD, TraceOp.BACKWARD))
    chunk = np.where(computes | (op == TraceOp.GRADS_REDUCE_SCATTER), 0, -1)
    model_chunk = np.where(computes, stage, -1)
    sizes = {len(one.ranks) for _, _, one in layout.stages()}
    return OpTrace(
        path=path,
        format="lurcher",
        dp=dp,
        stage=stage,
        rank=rank,
        step=step,
        op=op.astype(np.uint8),
        start_s=start,
        duration_s=duration,
        seq=seq,
        chunk=chunk,
        microbatch=microbatch,
        model_chunk=model_chunk,
        ranks_per_worker=min(sizes),
        notes=("transfers between stages are taken to be as long as the shortest receive of the window",),
    )


def _window(iteration: int, events: np.ndarray, layout: Layout, places: Sequence[Place]) -> list[_Row]:
    """The rows of one window; empty where a micro-batch lacks a chunk or ran elsewhere."""
    start_s, end_s = _aligned(events, places)
    receives = events["op"] == Op.RECV
    hop_s = float((end_s - start_s)[receives].min()) if receives.any() else 0.0
    stages = len(layout.replicas[0].stages)
    rows: list[_Row] = []
    for d, replica in enumerate(layout.replicas):
        lines = []
        for stage in replica.stages:
            mine = np.isin(events["rank"], stage.ranks)
            line = _chunks(events[mine], start_s[mine], end_s[mine], layout.microbatches_of(d), len(stage.ranks))
            if line is None:
                return []
            lines.append(line)
        for s, stage in enumerate(replica.stages):
            here = (iteration, d, s)
            rows += [(*here, op, seq, *span, seq, stage.ranks[0]) for (op, seq), span in lines[s].items()]
            rows += [(*here, op, seq, *span, -1, stage.ranks[0]) for op, seq, span in _transfers(lines, s, stages, hop_s)]
            begin = max(at + length for at, length in lines[s].values())
            last = np.isin(events["rank"], stage.ranks) & (events["op"] == Op.ALL_REDUCE) & (start_s >= begin - hop_s)
            if last.any():
                rows.append((*here, int(TraceOp.GRADS_REDUCE_SCATTER), 0, begin, max(0.0, float(end_s[last].max()) - begin), -1, stage.ranks[0]))
    return rows


def _chunks(
    events: np.ndarray, start_s: np.ndarray, end_s: np.ndarray, microbatches: range, num_ranks: int
) -> dict[tuple[int, int], tuple[float, float]] | None:
    """(operation, number) -> (start, duration) of a worker's chunks, numbered within the replica; None unless all its ranks ran all of them."""
    found = {}
    for kind, op in ((Op.FORWARD, TraceOp.FORWARD), (Op.BACKWARD, TraceOp.BACKWARD)):
        for seq, microbatch in enumerate(microbatches):
            mine = (events["op"] == kind) & (events["seq"] == microbatch)
            if np.count_nonzero(mine) != num_ranks:
                return None
            begin = float(start_s[mine].max())
            found[int(op), seq] = begin, max(0.0, float(end_s[mine].max()) - begin)
    return found


def _transfers(
    lines: Sequence[dict[tuple[int, int], tuple[float, float]]], stage: int, num_stages: int, hop_s: float
) -> list[tuple[int, int, tuple[float, float]]]:
    """A stage's sends and receives: a send begins when its chunk ends, a receive when the receiver has ended what it did before."""
    found = []
    for compute, send, receive, step in (
        (TraceOp.FORWARD, TraceOp.FORWARD_SEND, TraceOp.FORWARD_RECV, 1),
        (TraceOp.BACKWARD, TraceOp.BACKWARD_SEND, TraceOp.BACKWARD_RECV, -1),
    ):
        for sender, receiver in ((stage, stage + step), (stage - step, stage)):
            if not (0 <= sender < num_stages and 0 <= receiver < num_stages):
                continue
            for (op, seq), (at, length) in lines[sender].items():
                if op != compute:
                    continue
                sent, used = at + length, lines[receiver][op, seq][0]
                asked = max((a + b for a, b in lines[receiver].values() if a < used), default=sent)
                begin = sent if sender == stage else min(asked, used)
                found.append((int(send if sender == stage else receive), seq, (begin, max(sent, min(asked, used)) + hop_s - begin)))
    return found


def _aligned(events: np.ndarray, places: Sequence[Place]) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of each event in seconds, the hosts' clocks shifted so that the ranks' last sealed decision falls on one instant."""
    of_rank = {place.rank: place.host for place in places}
    hosts = np.array([of_rank.get(rank, str(rank)) for rank in events["rank"].tolist()])
    shift = np.zeros(len(events), np.int64)
    for host in np.unique(hosts):
        here = hosts == host
        sealed = here & (events["op"] == Op.COMMIT_WAIT)
        shift[here] = events["end_ns"][sealed if sealed.any() else here].max()
    start, end = events["start_ns"] - shift, events["end_ns"] - shift
    return (start - start.min()) / 1e9, (end - start.min()) / 1e9
