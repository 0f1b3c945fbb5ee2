"""Many runs at once: one line a run, and the fleet's facts as GREYHOUND's study gives them (section 3 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median, quantiles

import msgspec

from lurcher.analyze.values import Verdict


class RunLine(msgspec.Struct, frozen=True):
    """One run: `inflation` is its completion time over what it would have been without fail-slow (1.0: no loss)."""

    path: str
    num_iterations: int
    verdict: str
    events: str
    lost_s: float
    inflation: float


class Fleet(msgspec.Struct, frozen=True):
    """All runs together. Durations are those of fail_slow events that ended, in seconds; None where there is none."""

    num_runs: int
    share_hit: float
    mean_inflation_of_hit: float | None
    lost_hours_by_cause: dict[str, float]
    median_duration_s: float | None
    p90_duration_s: float | None


def run_line(verdict: Verdict, total_s: float) -> RunLine:
    """Sum one verdict up; `total_s` is the run's completion time in seconds."""
    lost_s = sum(event.lost_s for event in verdict.events if event.kind == "fail_slow")
    told = ", ".join(f"{e.kind} x{e.slowdown:.2f} at {e.onset_iteration}" for e in verdict.events[:3])
    more = f" and {len(verdict.events) - 3} more" if len(verdict.events) > 3 else ""
    inflation = total_s / (total_s - lost_s) if total_s > lost_s > 0 else 1.0
    return RunLine(verdict.source.path, verdict.source.num_iterations, verdict.verdict, told + more, lost_s, inflation)


def fleet(verdicts: Sequence[Verdict], lines: Sequence[RunLine]) -> Fleet:
    """The facts over all runs, in the same order as their lines."""
    hit = [line for line in lines if line.lost_s > 0]
    lost: dict[str, float] = {}
    lengths = []
    for verdict in verdicts:
        rate = verdict.throughput.slow_iter_per_min
        for event in verdict.events:
            if event.kind != "fail_slow":
                continue
            lost[event.cause] = lost.get(event.cause, 0.0) + event.lost_s / 3600.0
            if event.end_iteration is not None and rate:
                lengths.append((event.end_iteration - event.onset_iteration + 1) * 60.0 / rate)
    return Fleet(
        num_runs=len(lines),
        share_hit=len(hit) / len(lines) if lines else 0.0,
        mean_inflation_of_hit=mean(line.inflation for line in hit) if hit else None,
        lost_hours_by_cause=dict(sorted(lost.items())),
        median_duration_s=median(lengths) if lengths else None,
        p90_duration_s=quantiles(lengths, n=10)[-1] if len(lengths) > 1 else (lengths[0] if lengths else None),
    )


def fleet_text(lines: Sequence[RunLine], facts: Fleet) -> list[str]:
    """A table for a terminal, and a sentence for each fact that there is."""
    width = max(len(_short(line.path)) for line in lines)
    text = [
        f"{_short(line.path):<{width}}  {line.num_iterations:>8} it  {line.verdict:<12} {_loss(line):>16}  {line.events}".rstrip() for line in lines
    ]
    text.append(f"{facts.num_runs} runs, {facts.share_hit:.0%} hit by fail-slow")
    if facts.mean_inflation_of_hit is not None:
        text.append(f"a hit run took x{facts.mean_inflation_of_hit:.3f} of its time without fail-slow, on average")
    if facts.lost_hours_by_cause:
        text.append("lost: " + ", ".join(f"{_words(cause)} {_hours(hours)}" for cause, hours in _by_size(facts.lost_hours_by_cause)))
    if facts.median_duration_s is not None and facts.p90_duration_s is not None:
        text.append(
            f"a fail-slow lasted {facts.median_duration_s / 60:.1f} min in the median, {facts.p90_duration_s / 60:.1f} min in the longest tenth"
        )
    return text


def _by_size(lost: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(lost.items(), key=lambda item: -item[1])


def _words(cause: str) -> str:
    return "cause unknown" if cause == "unknown" else cause


def _hours(hours: float) -> str:
    return f"{hours:.2f} h" if hours >= 0.1 else f"{hours * 3600:.0f} s"


def _loss(line: RunLine) -> str:
    return f"{_hours(line.lost_s / 3600)} (x{line.inflation:.3f})" if line.lost_s > 0 else "-"


def _short(path: str) -> str:
    return path if len(path) <= 48 else "..." + path[-45:]
