"""One iteration's events to one row a rank, and one row a chunk: own work, waiting, transfer.

The split needs durations only, no common clock: a synchronising collective ends for all ranks together, so the shortest
duration in its group is what it takes with everybody there (transfer), and what a rank spends above it is waiting for
the last arriver (GREYHOUND's probe does not separate the two, and then blames the victims).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lurcher.layout import Layout
from lurcher.records import CHUNK, GROUP_KINDS, ITERATION, Op
from lurcher.track.timeline import IntArray, Timeline, timeline

Rows = npt.NDArray[np.void]

SYNCHRONISING = (Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_TO_ALL, Op.BARRIER)
"""Collectives with one common end. BROADCAST is not among them: its root leaves early."""


class _Split(NamedTuple):
    """Per event of a timeline: exposed nanoseconds spent waiting, exposed nanoseconds of transfer."""

    wait: IntArray
    transfer: IntArray


def reduce_events(events: Rows, layout: Layout, workload: Rows, index: int, window_ns: Mapping[int, tuple[int, int]]) -> tuple[Rows, Rows]:
    """ITERATION rows, one per rank seen, and CHUNK rows in the order they ran, of iteration `index`.

    events: EVENT rows of all ranks, any order; duplicates are dropped, missing ones only lose their own share.
    workload: WORKLOAD rows; those of other iterations are ignored. window_ns: start and end of each rank's iteration on
    its own clock; pauses inside are taken out. `expected_s` is NaN: the model fills it. A rank without events and without a window has no row.
    """
    line = timeline(events, window_ns)
    split = _wait_and_transfer(line)
    owner = _chunk_of(line)
    rows = _iteration_rows(line, split, layout, index)
    chunks = _chunk_rows(line, split, owner)
    _add_workload(rows, chunks, workload[workload["iteration"] == index])
    return rows, chunks


def _wait_and_transfer(line: Timeline) -> _Split:
    """Transfer is the group's minimum for a collective, the rank's own minimum for a receive (which is no synchronising
    collective: its sender leaves at once, so the shortest receive of the iteration stands for the link), all of a send;
    a commit wait is all waiting."""
    op = line.rows["op"]
    length = line.end - line.start
    floor = length.copy()
    collective = np.flatnonzero(np.isin(op, SYNCHRONISING))
    if len(collective):
        rows = line.rows[collective]
        # num_bytes is part of the key: calls that differ in size are not the same call, whatever their numbers say.
        floor[collective] = _minimum_by((rows["group"], rows["op"], rows["seq"], rows["num_bytes"]), length[collective])
    received = np.flatnonzero(op == Op.RECV)
    if len(received):
        floor[received] = _minimum_by((line.slot[received],), length[received])
    transfer = np.minimum(floor, line.exposed)
    transfer[(op == Op.COMMIT_WAIT) | (op == Op.INPUT)] = 0
    wait = np.where(op == Op.INPUT, 0, line.exposed - transfer)
    return _Split(wait, transfer)


def _minimum_by(keys: tuple[npt.NDArray[np.int64], ...], values: IntArray) -> IntArray:
    """For each value the minimum over the values with the same keys."""
    order = np.lexsort(keys)
    changed = np.ones(len(order), dtype=bool)
    changed[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    heads = np.flatnonzero(changed)
    result = np.empty_like(values)
    result[order] = np.minimum.reduceat(values[order], heads)[np.cumsum(changed) - 1]
    return result


def _chunk_of(line: Timeline) -> IntArray:
    """For each event the position of the latest chunk of its rank that began before it, or -1. Whether it lies inside is told by the ends."""
    is_chunk = _is_chunk(line)
    positions = np.where(is_chunk, np.arange(len(line.slot)), -1)
    latest: IntArray = np.maximum.accumulate(positions) if len(positions) else positions
    return np.where((latest >= 0) & (line.slot[latest] == line.slot), latest, -1)


def _is_chunk(line: Timeline) -> npt.NDArray[np.bool_]:
    op = line.rows["op"]
    return np.isin(op, (Op.FORWARD, Op.BACKWARD, Op.WEIGHT))


def _iteration_rows(line: Timeline, split: _Split, layout: Layout, index: int) -> Rows:
    rows = np.zeros(len(line.ranks), dtype=ITERATION)
    rows["index"], rows["rank"], rows["start_ns"] = index, line.ranks, line.start0_ns
    rows["duration_s"] = line.window_ns / 1e9
    rows["expected_s"] = np.nan
    op, kind = line.rows["op"], _kinds(line.rows, layout)
    num_ranks = len(line.ranks)
    rows["wait_s"] = _sum_by(line.slot, split.wait, num_ranks)
    for number, name in enumerate(GROUP_KINDS):
        rows[f"transfer_{name}_s"] = _sum_by(line.slot, np.where(kind == number, split.transfer, 0), num_ranks)
    rows["input_s"] = _sum_by(line.slot, np.where(op == Op.INPUT, line.exposed, 0), num_ranks)
    rows["busy_s"] = np.maximum(0.0, rows["duration_s"] - _sum_by(line.slot, line.exposed, num_ranks))
    return rows


def _kinds(rows: Rows, layout: Layout) -> IntArray:
    """Position in GROUP_KINDS of each event's group; unknown groups count as world, sends and receives as pp."""
    groups = layout.groups()
    table = np.full(max(g.id for g in groups) + 2, GROUP_KINDS.index("world"))
    for group in groups:
        table[group.id] = GROUP_KINDS.index(group.kind) if group.kind in GROUP_KINDS else GROUP_KINDS.index("world")
    known = (rows["group"] >= 0) & (rows["group"] < len(table))
    kind = table[np.where(known, rows["group"], len(table) - 1)]
    return np.where((rows["op"] == Op.SEND) | (rows["op"] == Op.RECV), GROUP_KINDS.index("pp"), kind)


def _chunk_rows(line: Timeline, split: _Split, owner: IntArray) -> Rows:
    """`gap_s` is 0 for the first chunk of a rank: what lies before it belongs to the iteration, not to the engine."""
    positions = np.flatnonzero(_is_chunk(line))
    chunks = np.zeros(len(positions), dtype=CHUNK)
    if len(positions) == 0:
        return chunks
    number = np.full(len(line.slot), -1)
    number[positions] = np.arange(len(positions))
    # A chunk is its own owner, but its exposed time is 0, so it adds nothing to the sums.
    mine = np.flatnonzero(owner >= 0)
    inside = line.end[mine] <= line.end[owner[mine]]
    within, after = mine[inside], mine[~inside]
    wait = _sum_by(number[owner[within]], split.wait[within], len(chunks))
    transfer = _sum_by(number[owner[within]], split.transfer[within], len(chunks))
    outside = _sum_by(number[owner[after]], line.exposed[after], len(chunks))
    length = (line.end[positions] - line.start[positions]) / 1e9
    chunks["rank"], chunks["microbatch"], chunks["phase"] = line.rows["rank"][positions], line.rows["seq"][positions], line.rows["op"][positions]
    chunks["wait_s"], chunks["transfer_s"] = wait, transfer
    chunks["busy_s"] = np.maximum(0.0, length - wait - transfer)
    follows = line.slot[positions][1:] == line.slot[positions][:-1]
    gap = (line.start[positions][1:] - line.end[positions][:-1]) / 1e9 - outside[:-1]
    chunks["gap_s"][1:] = np.where(follows, np.maximum(0.0, gap), 0.0)
    return chunks


def _sum_by(bins: IntArray, nanoseconds: IntArray, num_bins: int) -> npt.NDArray[np.float64]:
    return np.bincount(bins, weights=nanoseconds, minlength=num_bins) / 1e9


def _add_workload(rows: Rows, chunks: Rows, workload: Rows) -> None:
    """Sum each rank's micro-batches, each counted once however many chunks it has; unknown micro-batches count nothing."""
    forward = chunks[chunks["phase"] == Op.FORWARD]
    if len(forward) == 0 or len(workload) == 0:
        return
    work = workload[np.argsort(workload["microbatch"], kind="stable")]
    slot = np.searchsorted(rows["rank"], forward["rank"])
    place = np.minimum(np.searchsorted(work["microbatch"], forward["microbatch"]), len(work) - 1)
    known = work["microbatch"][place] == forward["microbatch"]
    slot, place = np.divmod(np.unique(slot[known] * len(work) + place[known]), len(work))
    for name in ("num_tokens", "sum_len_sq"):
        rows[name] = np.bincount(slot, weights=work[name][place], minlength=len(rows)).astype(np.int64)
