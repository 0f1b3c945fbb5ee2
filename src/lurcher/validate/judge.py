"""Does the benchmark bear the suspicion out? Pure: results in, one finding with its reason out.

The component is held against its own healthy baseline and against its cohort at the same instant. What slows suspect and
cohort alike (a benchmark heats and throttles every device, a host may be busy) is divided out, so it accuses nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from statistics import median_low
from typing import Literal

from lurcher.records import BenchResult, Finding, Suspicion


def judge(
    suspicion: Suspicion,
    measured: BenchResult,
    baseline: BenchResult | None,
    cohort: Sequence[BenchResult],
    cohort_baselines: Sequence[BenchResult],
    validated_by: Literal["device", "emulated"],
    min_slowdown: float = 1.10,
) -> Finding:
    """Proven when the component is slower than its own baseline, and than its cohort is now, by more than `min_slowdown` (GREYHOUND: 1.10).

    measured, cohort: the same benchmark at the same instant. baseline, cohort_baselines: of the same components when healthy;
    where the cohort's are unknown, its members are compared with the component's baseline. Results of another benchmark
    or that are not positive are left out. `slowdown` is the component's own, with the common shift divided out.
    """
    who = f"{suspicion.component.kind} {suspicion.component.id}"
    peers = [r for r in cohort if _comparable(r, measured) and r.component != suspicion.component]
    if not _comparable(measured, measured):
        return _finding(suspicion, measured, baseline, validated_by, suspicion.slowdown, False, f"{who}: the benchmark gave no usable time")
    if baseline is not None and not _comparable(baseline, measured):
        baseline = None
    if baseline is None and not peers:
        reason = f"{who}: neither a baseline of its own nor a cohort to hold {_time(measured)} against"
        return _finding(suspicion, measured, baseline, validated_by, suspicion.slowdown, False, reason)
    if baseline is None:
        against = median_low(r.measured for r in peers)
        slowdown = measured.measured / against
        proven = slowdown > min_slowdown
        reason = f"{who} takes {_time(measured)}, x{slowdown:.2f} of its cohort at the same instant (no baseline of its own); {_verdict(proven, min_slowdown)}"
        return _finding(suspicion, measured, baseline, validated_by, slowdown, proven, reason)
    own = measured.measured / baseline.measured
    if not peers:
        proven = own > min_slowdown
        reason = f"{who} takes {_time(measured)}, x{own:.2f} of its healthy {_time(baseline)} (no cohort to rule out a common shift); {_verdict(proven, min_slowdown)}"
        return _finding(suspicion, measured, baseline, validated_by, own, proven, reason)
    before = {r.component: r.measured for r in cohort_baselines if _comparable(r, measured)}
    shift = median_low(r.measured / before.get(r.component, baseline.measured) for r in peers)
    slowdown = own / shift
    # A cohort that became faster proves nothing against the suspect: it must be slow by its own measure too.
    proven = own > min_slowdown and slowdown > min_slowdown
    reason = (
        f"{who} takes {_time(measured)}, x{own:.2f} of its healthy {_time(baseline)}, while its cohort of {len(peers)} is at x{shift:.2f}: "
        f"x{slowdown:.2f} of its own; {_verdict(proven, min_slowdown)}"
    )
    return _finding(suspicion, measured, baseline, validated_by, min(own, slowdown) if not proven else slowdown, proven, reason)


def _comparable(result: BenchResult, with_: BenchResult) -> bool:
    return (result.name, result.unit) == (with_.name, with_.unit) and isfinite(result.measured) and result.measured > 0


def _finding(
    suspicion: Suspicion,
    measured: BenchResult,
    baseline: BenchResult | None,
    validated_by: Literal["device", "emulated"],
    slowdown: float,
    proven: bool,
    reason: str,
) -> Finding:
    held_against = baseline.measured if baseline is not None else measured.measured / slowdown
    return Finding(
        component=suspicion.component,
        cause=suspicion.cause,
        slowdown=slowdown,
        measured=measured.measured,
        baseline=held_against,
        unit=measured.unit,
        num_repeats=measured.num_repeats,
        validated_by=validated_by,
        proven=proven,
        reason=reason,
    )


def _time(result: BenchResult) -> str:
    return f"{result.measured * 1e3:.2f} ms" if result.unit == "s" else f"{result.measured:.4g} {result.unit}"


def _verdict(proven: bool, min_slowdown: float) -> str:
    return f"{'over' if proven else 'not over'} the limit of x{min_slowdown:.2f}"
