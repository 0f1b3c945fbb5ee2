"""Many runs at once: a line a run, and the facts over all."""

from __future__ import annotations

import pytest

from lurcher.analyze.fleet import fleet, fleet_text, run_line
from lurcher.analyze.values import EventKind, Source, Throughput, Verdict, VerdictEvent
from lurcher.analyze.verdict import build_verdict
from lurcher.records import Cause


def event(onset: int, end: int | None, lost_s: float, cause: Cause = "unknown", kind: EventKind = "fail_slow") -> VerdictEvent:
    return VerdictEvent(kind=kind, onset_iteration=onset, end_iteration=end, detected_iteration=onset + 6, slowdown=1.5, lost_s=lost_s, cause=cause)


def verdict(path: str, *events: VerdictEvent) -> Verdict:
    rates = Throughput(healthy_iter_per_min=60.0, slow_iter_per_min=40.0 if events else None)
    return build_verdict(source=Source(path=path, format="csv", num_iterations=1000, num_ranks=1), events=events, throughput=rates)


def test_the_facts_of_three_runs() -> None:
    several = [
        verdict("a", event(100, 139, 100.0, "compute"), event(300, 339, 100.0, "input")),
        verdict("b", event(100, 199, 3600.0, "compute"), event(500, None, 50.0, kind="level_shift")),
        verdict("c"),
        verdict("d", event(10, 12, 5.0, kind="burst")),
    ]
    lines = [run_line(v, total) for v, total in zip(several, (1000.0, 7200.0, 1000.0, 1000.0), strict=True)]
    assert [line.lost_s for line in lines] == [200.0, 3600.0, 0.0, 0.0]
    assert [line.inflation for line in lines] == [pytest.approx(1.25), pytest.approx(2.0), 1.0, 1.0]
    facts = fleet(several, lines)
    assert (facts.num_runs, facts.share_hit) == (4, 0.5)
    assert facts.mean_inflation_of_hit == pytest.approx(1.625)
    assert facts.lost_hours_by_cause == {"compute": pytest.approx(3700 / 3600), "input": pytest.approx(100 / 3600)}
    # 40, 40 and 100 iterations at 40 a minute
    assert facts.median_duration_s == pytest.approx(60.0) and facts.p90_duration_s is not None and facts.p90_duration_s >= 60.0


def test_the_table_says_the_worst_first_and_no_more_than_there_is() -> None:
    several = [verdict("x" * 80, event(100, 199, 3600.0, "compute")), verdict("c")]
    lines = [run_line(v, 7200.0) for v in several]
    text = fleet_text(lines, fleet(several, lines))
    assert len(text[0].split()[0]) == 48 and "fail_slow x1.50 at 100" in text[0]
    assert text[2] == "2 runs, 50% hit by fail-slow"
    assert any("compute 1.00 h" in line for line in text)
    healthy = [verdict("c")]
    quiet = [run_line(healthy[0], 10.0)]
    assert fleet_text(quiet, fleet(healthy, quiet))[1:] == ["1 runs, 0% hit by fail-slow"]
