"""Many pipelines, each with its own durations, in as few walks as there are shapes among them. Equal ones are walked once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lurcher.model.critical_path import makespans, makespans_by_count
from lurcher.model.order import compile_schedule
from lurcher.model.schedule import SPLIT_BACKWARD, schedule_text
from lurcher.model.stage_table import Floats

_MOST_CELLS = 1 << 22
"""Step times kept at once; more lanes than that are walked in parts."""


class Pipeline(NamedTuple):
    """One replica's pipeline. `seconds` are its rows' forward, backward and, if the schedule has it, weight durations, then the hops between."""

    num_stages: int
    num_chunks: int
    seconds: Floats


def pipeline_seconds(schedule: str, pipelines: Sequence[Pipeline], counts: Sequence[int]) -> list[float]:
    """Makespan of each pipeline with so many alike micro-batches, in seconds."""
    found = [0.0] * len(pipelines)
    for (num_stages, num_chunks), members in _by_shape(pipelines).items():
        working = [i for i in members if counts[i]]
        different = sorted({counts[i] for i in working})
        if num_chunks == 1 and len(different) > 1:
            lanes, which = _lanes([pipelines[i] for i in working])
            tables = _tables(schedule, num_stages, num_chunks, lanes, different[-1])
            for i, lane in zip(working, which, strict=True):
                found[i] = float(tables[lane, counts[i]])
            continue
        for count in different:
            alike = [i for i in working if counts[i] == count]
            lanes, which = _lanes([pipelines[i] for i in alike])
            times = _makespans(schedule, num_stages, num_chunks, lanes, count)
            for i, lane in zip(alike, which, strict=True):
                found[i] = float(times[lane])
    return found


def pipeline_tables(schedule: str, pipelines: Sequence[Pipeline], cap: int) -> list[Floats]:
    """T(m) of each pipeline for m = 0 .. cap alike micro-batches, in seconds."""
    found = [np.zeros(0)] * len(pipelines)
    for (num_stages, num_chunks), members in _by_shape(pipelines).items():
        lanes, which = _lanes([pipelines[i] for i in members])
        tables = _tables(schedule, num_stages, num_chunks, lanes, cap)
        for i, lane in zip(members, which, strict=True):
            found[i] = tables[lane]
    return found


def _makespans(schedule: str, num_stages: int, num_chunks: int, lanes: Floats, count: int) -> Floats:
    order = compile_schedule(schedule_text(schedule, num_stages, count, num_chunks))
    found = []
    for part in _parts(lanes, len(order.durations)):
        forward, backward, weight, hops = _unpack(part, num_stages * num_chunks, schedule)
        found.append(makespans(order, forward[..., None], backward[..., None], hops, None if weight is None else weight[..., None]))
    return np.concatenate(found)


def _tables(schedule: str, num_stages: int, num_chunks: int, lanes: Floats, cap: int) -> Floats:
    order = compile_schedule(schedule_text(schedule, num_stages, cap)) if num_chunks == 1 else None
    found = []
    for part in _parts(lanes, 3 * num_stages * num_chunks * cap):
        forward, backward, weight, hops = _unpack(part, num_stages * num_chunks, schedule)
        found.append(makespans_by_count(schedule, forward, backward, cap, hops, order, weight_s=weight, num_chunks=num_chunks))
    return np.concatenate(found)


def _by_shape(pipelines: Sequence[Pipeline]) -> dict[tuple[int, int], list[int]]:
    found: dict[tuple[int, int], list[int]] = {}
    for i, pipeline in enumerate(pipelines):
        found.setdefault((pipeline.num_stages, pipeline.num_chunks), []).append(i)
    return found


def _lanes(pipelines: Sequence[Pipeline]) -> tuple[Floats, list[int]]:
    """Each different pipeline's seconds once, as a row, and the row of every pipeline."""
    rows: dict[bytes, int] = {}
    which = [rows.setdefault(pipeline.seconds.tobytes(), len(rows)) for pipeline in pipelines]
    return np.frombuffer(b"".join(rows), dtype=np.float64).reshape(len(rows), -1), which


def _parts(lanes: Floats, num_steps: int) -> list[Floats]:
    size = max(_MOST_CELLS // max(num_steps, 1), 1)
    return [lanes[first : first + size] for first in range(0, len(lanes), size)]


def _unpack(lanes: Floats, num_rows: int, schedule: str) -> tuple[Floats, Floats, Floats | None, Floats]:
    """Forward, backward and weight durations (lanes, rows) and hops (lanes, rows - 1)."""
    forward, backward = lanes[:, :num_rows], lanes[:, num_rows : 2 * num_rows]
    if schedule in SPLIT_BACKWARD:
        return forward, backward, lanes[:, 2 * num_rows : 3 * num_rows], lanes[:, 3 * num_rows :]
    return forward, backward, None, lanes[:, 2 * num_rows :]
