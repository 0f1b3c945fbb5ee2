"""Rows of several ranks: who is named, for what, and who is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from lurcher.analyze.from_log import analyze_log
from lurcher.analyze.values import Verdict, VerdictEvent
from lurcher.ingest.log import Log
from lurcher.records import ITERATION

Floats = NDArray[np.float64]
NUM = 400


def log_of(columns: Mapping[str, Floats], path: str = "ranks.csv") -> Log:
    """A log from columns of iterations x ranks; a row without a duration is left out."""
    num, num_ranks = columns["duration_s"].shape
    rows = np.zeros(num * num_ranks, ITERATION)
    for name in ITERATION.names or ():
        if ITERATION[name].kind == "f":
            rows[name] = np.nan
    rows["index"] = np.repeat(np.arange(num), num_ranks)
    rows["rank"] = np.tile(np.arange(num_ranks), num)
    for name, values in columns.items():
        rows["transfer_world_s" if name == "transfer_s" else name] = values.ravel()
    rows = rows[np.isfinite(rows["duration_s"])]
    return Log(path=path, format="csv", rows=rows, columns=frozenset({*columns, "rank"}), num_ranks=num_ranks)


def healthy(num_ranks: int = 8, num: int = NUM, seed: int = 1) -> dict[str, Floats]:
    """Busy 0.8 of a second, input and host 0.05, transfer 0.1; everybody waits for the slowest."""
    random = np.random.default_rng(seed)
    shares = {"busy_s": 0.8, "input_s": 0.05, "host_s": 0.05, "transfer_s": 0.1}
    return {name: share * (1.0 + random.normal(0.0, 0.01, (num, num_ranks))) for name, share in shares.items()}


def job(parts: dict[str, Floats]) -> Log:
    slowest = sum(parts.values()).max(axis=1, keepdims=True)  # type: ignore[union-attr]
    return log_of({**parts, "duration_s": np.broadcast_to(slowest, parts["busy_s"].shape)})


def named(verdict: Verdict) -> list[tuple[str, str]]:
    return [(s.component.id, s.cause) for event in verdict.events for s in event.suspects]


def the_one(verdict: Verdict) -> VerdictEvent:
    (event,) = verdict.events
    return event


def test_nobody_is_named_in_a_healthy_job() -> None:
    verdict = analyze_log(job(healthy()))
    assert (verdict.verdict, verdict.events, verdict.source.num_ranks) == ("healthy", (), 8)


@pytest.mark.parametrize(
    ("column", "factor", "cause"),
    [("busy_s", 1.3, "compute"), ("input_s", 6.0, "input"), ("host_s", 6.0, "host"), ("transfer_s", 3.0, "communication")],
)
def test_the_column_that_rose_says_the_cause(column: str, factor: float, cause: str) -> None:
    parts = healthy()
    parts[column][150:300, 5] *= factor
    verdict = analyze_log(job(parts))
    event = the_one(verdict)
    assert verdict.verdict == "fail_slow" and named(verdict) == [("5", cause)] and event.cause == cause
    assert abs(event.onset_iteration - 150) <= 1 and event.end_iteration is not None and abs(event.end_iteration - 299) <= 1
    assert event.suspects[0].slowdown == pytest.approx(factor, rel=0.02)
    durations = job(parts).rows["duration_s"][::8]
    assert event.slowdown == pytest.approx(np.median(durations[150:300]) / np.median(durations[:150]), abs=0.01)
    assert event.lost_s == pytest.approx((durations[150:300] - np.median(durations[:150])).sum(), rel=0.05)


def test_it_is_named_soon() -> None:
    parts = healthy()
    parts["busy_s"][200:, 3] *= 1.10 * 1.02
    event = the_one(analyze_log(job(parts)))
    assert event.suspects[0].component.id == "3" and event.end_iteration is None
    assert event.detected_iteration - 200 < 15


def test_time_within_another_is_told_once_and_by_the_more_particular_name() -> None:
    parts = healthy()
    late = 0.3
    parts["input_s"][150:300, 2] += late
    parts["busy_s"][150:300, 2] += late  # busy time that contains the input's
    assert named(analyze_log(job(parts))) == [("2", "input")]


def test_an_excess_that_costs_nothing_is_nothing() -> None:
    parts = healthy()
    parts["input_s"] /= 50.0
    parts["input_s"][150:300, 2] *= 3.0  # 2 ms of a second
    assert analyze_log(job(parts)).events == ()


def test_permanent_differences_are_no_event() -> None:
    parts = healthy(num_ranks=10)
    parts["busy_s"] *= np.linspace(0.85, 1.15, 10)
    assert analyze_log(job(parts)).events == ()


def test_ranks_that_all_shift_alike_blame_nobody() -> None:
    parts = healthy()
    for part in parts.values():
        part[200:] *= 1.2
    verdict = analyze_log(job(parts))
    event = the_one(verdict)
    assert (event.kind, event.suspects, verdict.verdict) == ("level_shift", (), "inconclusive")
    assert event.slowdown == pytest.approx(1.2, abs=0.01)
    parts = healthy()
    for part in parts.values():
        part[200:300] *= 1.2
    assert [(e.kind, e.suspects) for e in analyze_log(job(parts)).events] == [("level_shift", ())]


def test_pauses_that_rotate_over_ranks_blame_nobody() -> None:
    parts = healthy()
    for iteration in range(100, NUM):
        parts["busy_s"][iteration, iteration % 8] *= 2.0
    assert named(analyze_log(job(parts))) == []
    parts = healthy()
    for iteration in range(100, NUM, 5):
        parts["host_s"][iteration, (iteration // 5) % 8] += 0.5
    assert named(analyze_log(job(parts))) == []


def test_slow_from_the_start_is_found_among_even_ranks() -> None:
    parts = healthy()
    parts["busy_s"][:, 6] *= 1.4
    verdict = analyze_log(job(parts))
    event = the_one(verdict)
    assert named(verdict) == [("6", "compute")] and (event.onset_iteration, event.end_iteration) == (0, None)
    assert event.suspects[0].confidence <= 0.5 and event.slowdown == pytest.approx(1.4, abs=0.02)
    parts = healthy()
    parts["busy_s"][:200, 6] *= 1.4
    assert [(e.onset_iteration, e.end_iteration) for e in analyze_log(job(parts)).events] == [(0, pytest.approx(199, abs=2))]


def test_stages_that_differ_by_design_are_not_taken_for_slow_from_the_start() -> None:
    parts = healthy()
    parts["busy_s"] *= [1.0, 1.0, 1.0, 1.0, 1.4, 1.4, 1.4, 1.4]
    assert analyze_log(job(parts)).events == ()


def test_a_rank_with_more_work_is_not_slow() -> None:
    parts = healthy()
    tokens = np.full((NUM, 8), 1000.0)
    tokens[150:300, 4] = 1500.0
    parts["busy_s"][150:300, 4] *= 1.5
    slowest = sum(parts.values()).max(axis=1, keepdims=True)  # type: ignore[union-attr]
    log = log_of({**parts, "num_tokens": tokens, "duration_s": np.broadcast_to(slowest, tokens.shape)})
    assert named(analyze_log(log)) == []


def test_durations_that_differ_are_each_rank_s_own() -> None:
    durations = 1.0 + np.random.default_rng(2).normal(0.0, 0.02, (300, 10))
    durations *= np.linspace(0.9, 1.1, 10)
    durations[180:195, 6] *= 1.6
    durations[[184, 190], 6] /= 1.6  # two good ones within
    durations[250:, 9] = np.nan  # ends earlier
    event = the_one(analyze_log(log_of({"duration_s": durations})))
    assert event.kind == "fail_slow" and [(s.component.id, s.cause) for s in event.suspects] == [("6", "unknown")]
    assert (event.onset_iteration, event.end_iteration) == (180, 194) and event.slowdown == pytest.approx(1.6, abs=0.04)


def test_what_has_no_unit_is_no_number_of_seconds() -> None:
    durations = np.ones((400, 1)) + np.random.default_rng(3).normal(0.0, 0.01, (400, 1))
    durations[200:300] *= 1.5
    log = replace(log_of({"duration_s": durations}), relative=True)
    (event,) = analyze_log(log).events
    assert event.lost_s == 0.0 and any("not known in seconds" in said for said in event.evidence)
    assert analyze_log(log).throughput.healthy_iter_per_min is None
    (sampled,) = analyze_log(replace(log, format="workers", stride=10)).events
    assert sampled.lost_s == pytest.approx(100 * 10 * (1.0 - 1.0 / 1.5), rel=0.02)
