"""Iterations per minute before, during and after a fault, and what the fault cost. Medians, so that a hiccup counts nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from lurcher.analyze.values import Throughput

MIN_ITERATIONS = 12
"""A median is taken over at least this many iterations where the phase has them."""


def durations_by_iteration(rows: npt.NDArray[np.void]) -> dict[int, float]:
    """The job's seconds per iteration from ITERATION rows: the median over ranks (all wait for each other, so they agree)."""
    good = rows[np.isfinite(rows["duration_s"]) & (rows["duration_s"] > 0)]
    order = np.argsort(good["index"], kind="stable")
    index, first = np.unique(good["index"][order], return_index=True)
    parts = np.split(good["duration_s"][order], first[1:])
    return {int(i): float(np.median(part)) for i, part in zip(index, parts, strict=True)} if len(index) else {}


def throughput(
    durations_s: Mapping[int, float],
    onset: int | None,
    end: int | None,
    layout_change: int | None = None,
    revert: int | None = None,
    *,
    paused: Collection[int] = (),
    warmup: int = 3,
) -> Throughput:
    """Iterations per minute by phase.

    durations_s: seconds by iteration number. onset and end: first and last slow iteration, None where there is none.
    layout_change and revert: first iteration on the new layout, and first one back on the old.
    healthy: before the onset, without the first `warmup` ones where enough remain. slow: onset to the last before the
    change, without `paused` ones. mitigated: from the second iteration after the change to the fault's end. recovered:
    from the second after the revert; where the layout never changed, from the second after the fault.
    """
    every = sorted(durations_s)
    last = every[-1] if every else 0
    until = last if end is None else end
    before = every if onset is None else [i for i in every if i < onset]
    healthy = _rate(durations_s, before[min(warmup, max(0, len(before) - MIN_ITERATIONS)) :])
    if onset is None:
        return Throughput(healthy_iter_per_min=healthy)
    changed = last + 1 if layout_change is None else layout_change
    slow = [i for i in every if onset <= i < changed and i <= until]
    calm = [i for i in slow if i not in paused]
    mitigated_end = until if revert is None else min(until, revert - 1)
    back = revert if revert is not None else (end + 1 if end is not None and layout_change is None else None)
    return Throughput(
        healthy_iter_per_min=healthy,
        slow_iter_per_min=_rate(durations_s, calm or slow),
        mitigated_iter_per_min=_rate(durations_s, [i for i in every if changed + 1 <= i <= mitigated_end]),
        recovered_iter_per_min=None if back is None else _rate(durations_s, [i for i in every if i >= back + 1]),
    )


def lost_s(durations_s: Mapping[int, float], expected_s: Mapping[int, float] | float, onset: int, end: int | None) -> float:
    """Seconds lost from `onset` to `end` (None: to the last): the sum of observed - expected, never below 0."""
    lost = 0.0
    for i, observed in durations_s.items():
        if i < onset or (end is not None and i > end):
            continue
        expected = expected_s if isinstance(expected_s, float | int) else expected_s.get(i, observed)
        lost += observed - expected
    return max(0.0, lost)


def _rate(durations_s: Mapping[int, float], iterations: list[int]) -> float | None:
    if not iterations:
        return None
    return float(60.0 / np.median([durations_s[i] for i in iterations]))
