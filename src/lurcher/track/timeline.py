"""One iteration's events on an axis without pauses, sorted, without duplicates, each with its exposed time.

All times here are nanoseconds since the start of the rank's own window, with the pauses before them taken out. Clocks of
different ranks are never compared: only durations are (localisation by durations is clock-free).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lurcher.records import Op

IntArray = npt.NDArray[np.int64]


class Timeline(NamedTuple):
    """Events as columns, sorted by (rank, start, longest first); `slot` is the row of the rank in `ranks`.

    `exposed` is the part of a communication, commit wait or input event that no earlier one of the same rank covers,
    so that overlapping (asynchronous) operations are never counted twice; 0 for all other events.
    """

    ranks: IntArray
    window_ns: IntArray  # per slot: length of the window, pauses taken out
    start0_ns: IntArray  # per slot: start of the window on the host's clock
    rows: npt.NDArray[np.void]  # EVENT rows, PAUSE rows left out
    slot: IntArray
    start: IntArray
    end: IntArray
    exposed: IntArray


def timeline(events: npt.NDArray[np.void], window_ns: Mapping[int, tuple[int, int]]) -> Timeline:
    """EVENT rows of one iteration, any order, and each rank's (start, end) on its own clock; ranks without a window use their events' span."""
    rows = _sorted_unique(events)
    ranks = np.unique(np.concatenate([rows["rank"].astype(np.int64), np.array(sorted(window_ns), dtype=np.int64)]))
    slot = np.searchsorted(ranks, rows["rank"])
    begin, finish = _windows(ranks, slot, rows, window_ns)
    start = np.clip(rows["start_ns"], begin[slot], finish[slot]) - begin[slot]
    end = np.clip(rows["end_ns"], begin[slot], finish[slot]) - begin[slot]
    end = np.maximum(end, start)
    length = finish - begin
    is_pause = rows["op"] == Op.PAUSE
    pauses = [
        (s, merged_span) for s in np.unique(slot[is_pause]) for merged_span in _merged(start[is_pause & (slot == s)], end[is_pause & (slot == s)])
    ]
    paused_start, paused_end = np.zeros_like(start), np.zeros_like(end)
    for s, (first, last) in pauses:
        mine = slot == s
        paused_start[mine] += np.clip(start[mine] - first, 0, last - first)
        paused_end[mine] += np.clip(end[mine] - first, 0, last - first)
        length[s] -= last - first
    keep = ~is_pause
    start, end, slot, rows = (start - paused_start)[keep], (end - paused_end)[keep], slot[keep], rows[keep]
    return Timeline(ranks, length, begin, rows, slot, start, end, _exposed(rows["op"], slot, start, end))


def _sorted_unique(events: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    # Columns are copied first: sorting strided fields costs twice as much.
    start, end, what = events["start_ns"].copy(), events["end_ns"].copy(), (events["seq"] << 8) | events["op"]
    order = np.lexsort((what, -end, start, events["rank"].astype(np.int64)))
    rows: npt.NDArray[np.void] = events[order]
    twice = (np.diff(start[order]) == 0) & (np.diff(end[order]) == 0) & (np.diff(what[order]) == 0)
    if not twice.any():
        return rows
    for name in ("rank", "group", "peer"):
        twice &= rows[name][1:] == rows[name][:-1]
    unique: npt.NDArray[np.void] = rows[np.concatenate([[True], ~twice])]
    return unique


def _windows(ranks: IntArray, slot: IntArray, rows: npt.NDArray[np.void], window_ns: Mapping[int, tuple[int, int]]) -> tuple[IntArray, IntArray]:
    begin, finish = np.zeros(len(ranks), dtype=np.int64), np.zeros(len(ranks), dtype=np.int64)
    if len(rows):
        heads = np.flatnonzero(np.concatenate([[True], np.diff(slot) > 0]))
        begin[slot[heads]] = np.minimum.reduceat(rows["start_ns"], heads)
        finish[slot[heads]] = np.maximum.reduceat(rows["end_ns"], heads)
    for s, rank in enumerate(ranks.tolist()):
        if rank in window_ns:
            begin[s], finish[s] = window_ns[rank]
    return begin, np.maximum(finish, begin)


def _merged(start: IntArray, end: IntArray) -> list[tuple[int, int]]:
    """Union of a rank's few pauses as disjoint spans."""
    spans: list[tuple[int, int]] = []
    for first, last in sorted(zip(start.tolist(), end.tolist(), strict=True)):
        if spans and first <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], last))
        else:
            spans.append((first, last))
    return spans


def _exposed(op: npt.NDArray[np.uint8], slot: IntArray, start: IntArray, end: IntArray) -> IntArray:
    """Union length of the non-work events, shared out to them in order of their start."""
    exposed = np.zeros(len(op), dtype=np.int64)
    picked = np.flatnonzero((op < Op.FORWARD) | (op == Op.INPUT))
    if len(picked) == 0:
        return exposed
    # One running maximum serves all ranks: each slot lies on its own stretch of the axis.
    base = slot[picked] * (int(end.max()) + 1)
    first, last = start[picked] + base, end[picked] + base
    covered = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(last)[:-1]])
    exposed[picked] = np.maximum(0, last - np.maximum(first, covered))
    return exposed
