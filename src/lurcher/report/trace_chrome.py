"""A step of a trace as a Chrome timeline, measured and ideal side by side: opens in Perfetto, and can be analysed again."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lurcher.errors import UserError
from lurcher.ingest.op_trace import OP_NAMES, TraceOp
from lurcher.localize.whatif import TraceAnalysis
from lurcher.report.trace_spans import IN_BACKGROUND, StepSpans, ideal_spans, measured_spans, typical_step

_LANES = ("compute", "transfer between stages", "collectives")
_IDEAL_PID = 1_000_000
"""Processes from here on are the ideal timeline's."""


def write_timeline(analysis: TraceAnalysis, path: Path, step: int | None = None) -> None:
    """Write the timeline of one step (its place; None is the typical one), gzipped if the name ends in .gz, whole or not at all."""
    place = typical_step(analysis) if step is None else step
    data = msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": timeline_events(analysis, place)})
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(gzip.compress(data, 6) if path.suffix == ".gz" else data)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"{path}: {error.strerror or error}; name a file in a folder that can be written") from error


def timeline_events(analysis: TraceAnalysis, place: int) -> list[dict[str, Any]]:
    """Events of both timelines, each replica a process and each stage three threads. The ideal one's are named `ideal ...`, so that readers pass over them."""
    measured, ideal = measured_spans(analysis, place), ideal_spans(analysis, place)
    return [*_events(analysis, measured, 0, range(analysis.num_replicas), ""), *_events(analysis, ideal, _IDEAL_PID, range(1), "ideal ")]


def _events(analysis: TraceAnalysis, spans: StepSpans, first_pid: int, replicas: range, prefix: str) -> Iterator[dict[str, Any]]:
    table = analysis.graph.table
    lane = np.where(
        np.isin(table.op, (TraceOp.FORWARD, TraceOp.BACKWARD, TraceOp.OPTIMIZER, TraceOp.GC)), 0, np.where(np.isin(table.op, IN_BACKGROUND), 1, 2)
    )
    for dp in replicas:
        pid = first_pid + dp
        name = f"ideal, all {analysis.num_replicas} replicas alike" if prefix else f"measured, DP rank [{dp}]"
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": 2 * dp + bool(prefix)}}
        for stage in range(analysis.num_stages):
            for number, text in enumerate(_LANES):
                yield {
                    "ph": "M",
                    "name": "thread_name",
                    "pid": pid,
                    "tid": len(_LANES) * stage + number,
                    "args": {"name": f"PP rank {stage}, {text}"},
                }
        for op in range(len(table)):
            stage = int(table.stage[op])
            yield {
                "ph": "X",
                "name": prefix + OP_NAMES[table.op[op]],
                "cat": OP_NAMES[table.op[op]],
                "pid": pid,
                "tid": len(_LANES) * stage + int(lane[op]),
                "ts": float(spans.begin_s[op, dp]) * 1e6,
                "dur": max(0.0, float(spans.end_s[op, dp] - spans.begin_s[op, dp]) * 1e6),
                "args": {
                    "step": spans.step,
                    "dp_rank": dp,
                    "stage": stage,
                    "rank": int(analysis.dense.ranks[dp, stage]),
                    "seq_id": int(table.seq[op]),
                    "mb_id": int(table.microbatch[op]),
                    "model_chunk": int(table.chunk[op]),
                    "own_us": float(spans.own_s[op, dp]) * 1e6,
                },
            }
