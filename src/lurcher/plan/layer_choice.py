"""The best cuts of a pipeline's layers by the pipeline's closed form: exact where all stages are alike, a proposal elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.intp]
Floats = NDArray[np.float64]


def layer_choices(
    layer_s: Floats, fixed_s: Floats, caps: Sequence[int], num_layers: int, num_microbatches: int, *, present: Sequence[int] = (), count: int = 1
) -> tuple[tuple[int, ...], ...]:
    """The `count` best cuts (n_0, ..) of `num_layers` layers over P stages, best first; none where the caps leave no room.

    Minimises (m - 1) max_j t_j + sum_j t_j with t_j = fixed_s[j] + n_j layer_s[j] in seconds and 1 <= n_j <= caps[j]:
    the time of m micro-batches through the pipeline, exact for equal stages and an upper bound for others. `layer_s`
    and `fixed_s` have shape (P,). For every possible longest stage the layers go to the fastest stages that have room
    below it, which minimises the sum; so the first one is optimal, and the others trade the longest against the sum.
    Ties go to the cut nearest to `present`.
    """
    spare = num_layers - len(layer_s)
    room = np.minimum(np.asarray(caps, dtype=np.intp), spare + 1)
    if spare < 0 or (room < 1).any() or room.sum() < num_layers:
        return ()
    times = fixed_s[:, None] + layer_s[:, None] * np.arange(1, spare + 2)
    allowed = np.arange(spare + 1) < room[:, None]
    longest = np.array(sorted(set(times[allowed].tolist())))  # np.unique loads numpy.ma, which takes longer than all of this
    most = np.stack([np.searchsorted(row, longest, side="right") for row in times], axis=1)
    most = np.minimum(most, room)
    enough = (most.min(axis=1) >= 1) & (most.sum(axis=1) >= num_layers)
    longest, most = longest[enough], most[enough]
    counts = _fastest_first(most, layer_s, num_layers)
    ends_s = fixed_s + layer_s * counts
    total_s = (num_microbatches - 1) * ends_s.max(axis=1) + ends_s.sum(axis=1)
    chosen: dict[tuple[int, ...], None] = {}
    for i in np.argsort(total_s, kind="stable"):
        chosen[_settle(counts[i], most[i], layer_s, present)] = None
        if len(chosen) == count:
            break
    return tuple(chosen)


def _fastest_first(most: Ints, layer_s: Floats, num_layers: int) -> Ints:
    """One layer for each stage, the rest to the fastest stages up to `most`; rows are cases."""
    order = np.argsort(layer_s, kind="stable")
    room = most[:, order] - 1
    before = np.cumsum(room, axis=1) - room
    taken = np.clip(num_layers - most.shape[1] - before, 0, room)
    counts = np.empty_like(most)
    counts[:, order] = taken + 1
    return counts


def _settle(counts: Ints, most: Ints, layer_s: Floats, present: Sequence[int]) -> tuple[int, ...]:
    """The same number of layers for the stages of each speed, as near to the present cut as that allows."""
    if not len(present):
        return tuple(int(n) for n in counts)
    settled = np.clip(np.asarray(present, dtype=np.intp), 1, most)
    for speed in sorted(set(layer_s.tolist())):
        alike = np.flatnonzero(layer_s == speed)
        missing = int(counts[alike].sum() - settled[alike].sum())
        for _ in range(missing):
            settled[min((j for j in alike if settled[j] < most[j]), key=lambda j: (settled[j], j))] += 1
        for _ in range(-missing):
            settled[max((j for j in alike if settled[j] > 1), key=lambda j: (settled[j], j))] -= 1
    return tuple(int(n) for n in settled)
