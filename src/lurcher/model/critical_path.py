"""When every chunk of a pipeline schedule starts and ends: a walk of its text in topological order (ResiHP eq. 2).

All arrays carry leading lane axes (replicas, iterations, candidates), so that one walk scores many cases. A row is a chunk
along the pipeline: a stage, unless the schedule is interleaved (see `model/order.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lurcher.model.order import Order, compile_schedule
from lurcher.model.schedule import schedule_text

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Timeline:
    """The walked schedule, in seconds from its start. `starts_s` and `ends_s` have shape (lanes..., steps), as `order.steps`."""

    order: Order
    starts_s: Floats
    ends_s: Floats
    makespan_s: Floats  # (lanes...)


def walk(texts: Sequence[str], forward_s: Floats, backward_s: Floats, hop_s: ArrayLike = 0.0, weight_s: Floats | None = None) -> Timeline:
    """Compile and walk at once: for a single look. See `finish_times`."""
    return finish_times(compile_schedule(texts), forward_s, backward_s, hop_s, weight_s)


def finish_times(order: Order, forward_s: Floats, backward_s: Floats, hop_s: ArrayLike = 0.0, weight_s: Floats | None = None) -> Timeline:
    """Walk a compiled schedule.

    Durations have shape (lanes..., rows, m), or (lanes..., rows, 1) where all micro-batches are alike, in seconds. `hop_s` is
    the time from row to row: one number, or (lanes..., rows - 1) with one per border. `weight_s` is needed when the
    schedule splits the backward pass (W actions).
    """
    ends, lanes = _walk(order, forward_s, backward_s, hop_s, weight_s, starts := np.zeros((len(order.durations), math.prod(forward_s.shape[:-2]))))
    shape = (*lanes, len(order.durations))
    return Timeline(order, starts.T.reshape(shape), ends[1:].T.reshape(shape), ends.max(axis=0).reshape(lanes))


def makespans(order: Order, forward_s: Floats, backward_s: Floats, hop_s: ArrayLike = 0.0, weight_s: Floats | None = None) -> Floats:
    """Only how long it takes, shape (lanes...), in seconds; arguments as for `finish_times`."""
    ends, lanes = _walk(order, forward_s, backward_s, hop_s, weight_s, None)
    found: Floats = ends.max(axis=0).reshape(lanes)
    return found


def _walk(
    order: Order, forward_s: Floats, backward_s: Floats, hop_s: ArrayLike, weight_s: Floats | None, starts: Floats | None
) -> tuple[Floats, tuple[int, ...]]:
    """End times (1 + steps, lanes), row 0 being the start of the iteration, and the lanes' shape; fills `starts` (steps, lanes) if given."""
    if order.has_weight and weight_s is None:
        raise ValueError("the schedule has W actions; weight_s must give their durations")
    lanes = forward_s.shape[:-2]
    num_lanes = math.prod(lanes)
    parts = [np.asarray(part, dtype=np.float64) for part in (forward_s, backward_s, *(() if weight_s is None else (weight_s,)))]
    alike = all(part.shape[-1] == 1 for part in parts)
    per_row = 1 if alike else order.num_microbatches
    flat = [np.broadcast_to(part, (*lanes, order.num_rows, per_row)).reshape(num_lanes, -1).T for part in parts]
    table = np.concatenate(flat, out=np.empty((sum(len(part) for part in flat), num_lanes)))  # lanes side by side in memory
    picks = order.durations // order.num_microbatches if alike else order.durations
    hops = _hops(order, hop_s, lanes)
    ends = np.zeros((len(order.durations) + 1, num_lanes))
    for level in order.levels:
        arrival = ends.take(level.needs, axis=0)
        if hops is not None:
            arrival += hops.take(level.hops, axis=0)
        np.maximum(arrival, ends.take(level.after, axis=0), out=arrival)
        if starts is not None:
            starts[level.first : level.end] = arrival
        np.add(arrival, table.take(picks[level.first : level.end], axis=0), out=ends[level.first + 1 : level.end + 1])
    return ends, lanes


def _hops(order: Order, hop_s: ArrayLike, lanes: tuple[int, ...]) -> Floats | None:
    """Seconds per border, (borders + 1, lanes or 1), with a last row of zeros for steps that cross none; None where all are 0."""
    given = np.asarray(hop_s, dtype=np.float64)
    if not given.any():
        return None
    if given.ndim == 0:
        return np.append(np.full(order.num_borders, float(given)), 0.0)[:, None]
    spread = np.broadcast_to(given, (*lanes, order.num_borders)).reshape(-1, order.num_borders)
    return np.concatenate([spread.T, np.zeros((1, len(spread)))])


def makespans_by_count(
    name: str,
    forward_s: Floats,
    backward_s: Floats,
    max_microbatches: int,
    hop_s: ArrayLike = 0.0,
    order: Order | None = None,
    *,
    weight_s: Floats | None = None,
    num_chunks: int = 1,
) -> Floats:
    """Makespan in seconds for 0 .. `max_microbatches` alike micro-batches, shape (lanes..., max_microbatches + 1).

    `forward_s`, `backward_s` and `weight_s` have shape (lanes..., rows): one action of each row. Equal to walking every count
    for itself, but out of ONE walk; only interleaved chunks take a walk each, and there a count that would take less than
    a smaller one (its groups divide better) is given the smaller one's time. `order` is the compiled schedule of
    `max_microbatches`, where the caller keeps it.
    """
    lanes, num_rows = forward_s.shape[:-1], forward_s.shape[-1]
    none = np.zeros((*lanes, 1))
    if max_microbatches == 0:
        return none
    parts = [None if part is None else np.asarray(part, dtype=np.float64)[..., None] for part in (forward_s, backward_s, weight_s)]
    forward, backward, weight = parts
    assert forward is not None and backward is not None
    num_stages = num_rows // num_chunks
    if num_chunks > 1:
        orders = [compile_schedule(schedule_text(name, num_stages, m, num_chunks)) for m in range(1, max_microbatches + 1)]
        each = [makespans(order, forward, backward, hop_s, weight) for order in orders]
        return np.concatenate([none, np.maximum.accumulate(np.stack(each, axis=-1), axis=-1)], axis=-1)
    if order is None:
        order = compile_schedule(schedule_text(name, num_stages, max_microbatches))
    ends = finish_times(order, forward, backward, hop_s, weight).ends_s
    if name == "gpipe":
        # The backward pass begins when the last forward ends, and from there takes the same time however many came before.
        forward_ends, backward_ends = ends[..., order.rows("F")[-1]], ends[..., order.rows("B")[0]]
        with np.errstate(invalid="ignore"):
            found = forward_ends + (backward_ends - forward_ends[..., -1:])
        found = np.where(np.isinf(backward_ends), np.inf, found)
    else:
        borders = np.broadcast_to(np.asarray(hop_s, dtype=np.float64), (*lanes, num_stages - 1))
        found = _drain(order, ends, backward, np.zeros_like(backward) if weight is None else weight, borders)
    return np.concatenate([none, found], axis=-1)


def _drain(order: Order, ends: Floats, backward_s: Floats, weight_s: Floats, hop_s: Floats) -> Floats:
    """Makespans of 1F1B and ZB-H1 for m = 1 .. M, from the end times (lanes..., steps) of the largest; durations (lanes..., P, 1).

    The schedule of m micro-batches equals the larger one up to each stage's last forward, F(m-1), and the B and W paired
    with it; only the P - s - 1 backwards that then drain stage s, and the W's that are left, differ. They are walked for all m at once.
    """
    num_stages, counts = order.num_stages, np.arange(1, order.num_microbatches + 1)
    forward_ends, backward_ends = ends[..., order.rows("F")], ends[..., order.rows("B")]
    weight_ends = ends[..., order.rows("W")] if order.has_weight else backward_ends
    makespan = np.zeros(1)
    above: list[Floats] = []  # when the next stage's paired and draining backwards end
    for stage in range(num_stages - 1, -1, -1):
        ahead, late = num_stages - stage - 1, stage if order.has_weight else 0
        paired, weighed = counts - 1 - ahead, counts - 1 - ahead - late
        free = np.where(paired >= 0, backward_ends[..., stage, np.maximum(paired, 0)], forward_ends[..., stage, counts - 1])
        sent = [free]
        free = np.where(weighed >= 0, weight_ends[..., stage, np.maximum(weighed, 0)], free)
        for j in range(ahead):
            microbatch = counts - ahead + j
            done = np.where(microbatch >= 0, np.maximum(free, above[j] + hop_s[..., stage, None]) + backward_s[..., stage, :], free)
            sent.append(done)
            free = np.where(microbatch >= late, done + weight_s[..., stage, :], done)
        if late:
            free = free + np.minimum(counts, late) * weight_s[..., stage, :]
        makespan = np.maximum(makespan, free)
        above = sent
    return makespan
