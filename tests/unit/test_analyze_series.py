"""What one series is said to show: each kind, each trap, and what may not change it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lurcher.analyze.period import as_floats
from lurcher.analyze.series import Known, analyze_series, overlap, rates
from lurcher.analyze.spans import Spans
from lurcher.analyze.values import VerdictEvent

Floats = NDArray[np.float64]


def noise(num: int, scatter: float = 0.01, seed: int = 1) -> Floats:
    return 1.0 + np.random.default_rng(seed).normal(0.0, scatter, num)


def events(values: Floats, known: Known = "nothing", *, expects_one: bool = False, stride: int = 1) -> tuple[VerdictEvent, ...]:
    return analyze_series(np.arange(len(values)) * stride, values, values, known, stride=stride, expects_one=expects_one).events


def only(values: Floats, known: Known = "nothing", *, expects_one: bool = False, stride: int = 1) -> VerdictEvent:
    (event,) = events(values, known, expects_one=expects_one, stride=stride)
    return event


def test_a_slow_period_that_ends_is_a_fail_slow() -> None:
    values = noise(600)
    values[200:400] *= 1.2
    event = only(values)
    assert event.kind == "fail_slow" and not event.suspects and event.cause == "unknown"
    assert abs(event.onset_iteration - 200) <= 1 and event.end_iteration is not None and abs(event.end_iteration - 399) <= 1
    assert event.slowdown == pytest.approx(1.2, abs=0.01)
    assert event.lost_s == pytest.approx(values[200:400].sum() - 200, rel=0.05)


def test_a_step_that_lasts_is_a_level_shift_unless_the_work_is_ruled_out() -> None:
    values = noise(600)
    values[300:] *= 1.2
    assert [e.kind for e in events(values)] == ["level_shift"]
    for known in ("workload", "baseline", "rank"):
        assert [(e.kind, e.end_iteration) for e in events(values, known)] == [("fail_slow", None)]


def test_a_short_period_is_a_burst() -> None:
    values = noise(600)
    values[200:230] *= 1.5
    assert [e.kind for e in events(values)] == ["burst"]


def test_steps_within_a_period_are_evidence_not_events() -> None:
    values = noise(700)
    values[200:300] *= 1.2
    values[300:400] *= 1.6
    event = only(values)
    assert (event.kind, round(event.onset_iteration, -1), round(event.end_iteration or 0, -1)) == ("fail_slow", 200, 400)
    assert any("from iteration 30" in said for said in event.evidence)


def test_warm_up_is_nothing() -> None:
    values = noise(500)
    values[0] = 30.0
    values[:60] *= 1.0 + 0.2 * np.exp(-np.arange(60) / 20.0)
    assert events(values) == ()


def test_a_hump_of_the_model_is_no_fail_slow() -> None:
    values = noise(800, 0.004)
    values[100:260] *= 1.0 + 0.15 * np.sin(np.linspace(0.0, np.pi, 160))
    assert {e.kind for e in events(values)} <= {"drift", "burst"}


def test_a_creep_is_no_fail_slow() -> None:
    values = noise(3000, 0.005) * np.linspace(1.0, 1.15, 3000)
    assert {e.kind for e in events(values)} <= {"drift"}


def test_spikes_and_periodic_work_are_nothing() -> None:
    values = noise(3000)
    values[np.random.default_rng(3).choice(3000, 40, replace=False)] *= 2.3
    values[::10] *= 1.5
    assert events(values) == ()


def test_a_sawtooth_of_restarts_is_restarts() -> None:
    teeth = [np.concatenate([[5.0], np.linspace(1.0, 1.1, 299)]) for _ in range(5)]
    values = np.concatenate(teeth) * noise(1500, 0.003)
    said = events(values)
    assert [e.kind for e in said if e.kind != "drift"] == ["restart"] * 4
    assert [e.onset_iteration for e in said if e.kind == "restart"] == [300, 600, 900, 1200]


def test_slow_from_the_start_shows_against_siblings_only() -> None:
    values = noise(400)
    values[:200] *= 1.15
    event = only(values, "baseline", expects_one=True)
    assert (event.kind, event.onset_iteration) == ("fail_slow", 0) and event.slowdown == pytest.approx(1.15, abs=0.01)
    assert event.end_iteration is not None and abs(event.end_iteration - 199) <= 1
    assert events(values) == ()


def test_a_stride_counts_in_what_was_lost() -> None:
    values = noise(600)
    values[200:400] *= 1.2
    assert only(values, stride=5).lost_s == pytest.approx(5 * only(values).lost_s)


SPANS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12)


def made(onset: int, end: int | None) -> VerdictEvent:
    return VerdictEvent(kind="burst", onset_iteration=onset, end_iteration=end, detected_iteration=onset, slowdown=1.2, lost_s=0.0, cause="unknown")


@given(SPANS, st.booleans(), st.integers(0, 120), st.integers(0, 30) | st.none())
def test_overlaps_by_bisection_are_those_by_looking_at_all(gaps: list[tuple[int, int]], lasts: bool, onset: int, length: int | None) -> None:
    told, at = [], 0
    for gap, size in gaps:
        told.append(made(at + gap, at + gap + size))
        at += gap + size + 1
    if told and lasts:
        told[-1] = made(told[-1].onset_iteration, None)
    asked = made(onset, None if length is None else onset + length)
    assert [told[place] for place in Spans(told).touched_by(asked)] == [event for event in told if overlap(event, asked)]


def test_rates_against_masks() -> None:
    values, iterations = noise(900), np.arange(900) * 10
    values[[5, 350]] = np.nan
    for begin, end in ((100, 150), (300, 400), (700, None)):
        values[begin:end] *= 1.5
    told = [made(1000, 1490), msgspec.structs.replace(made(3000, 3990), kind="fail_slow", lost_s=9.0), made(7000, None)]
    inside = [(iterations >= e.onset_iteration) & (iterations <= (e.end_iteration or 10**9)) for e in told]
    healthy, slow = rates(values, told, iterations)
    assert healthy == 60 / np.nanmedian(values[~np.any(inside, axis=0)]) and slow == 60 / np.nanmedian(values[inside[1]])


TRACE = st.tuples(st.integers(0, 10**6), st.integers(60, 200), st.integers(60, 120), st.floats(1.15, 3.0))


def trace(seed: int, onset: int, length: int, factor: float) -> Floats:
    values = noise(onset + length + 80, 0.01, seed)
    values[onset : onset + length] *= factor
    return values


@settings(max_examples=25)
@given(TRACE)
def test_cut_at_its_detection_it_is_detected_and_one_sample_earlier_not(made: tuple[int, int, int, float]) -> None:
    values = trace(*made)
    for event in events(values):
        place = event.detected_iteration
        assert any(e.detected_iteration == place for e in events(values[: place + 1]))
        assert not any(e.onset_iteration <= event.onset_iteration + 3 and e.kind != "restart" for e in events(values[:place]))


@settings(max_examples=25)
@given(TRACE, st.floats(1e-6, 1e6))
def test_the_unit_of_time_changes_nothing(made: tuple[int, int, int, float], unit: float) -> None:
    values = trace(*made)
    plain, scaled = events(values), events(values * unit)
    for a, b in zip(plain, scaled, strict=True):
        assert (a.kind, a.onset_iteration, a.end_iteration, a.detected_iteration) == (
            b.kind,
            b.onset_iteration,
            b.end_iteration,
            b.detected_iteration,
        )
        assert b.slowdown == pytest.approx(a.slowdown) and b.lost_s == pytest.approx(a.lost_s * unit)


@settings(max_examples=25)
@given(TRACE, st.sets(st.integers(0, 139), max_size=30))
def test_unknown_samples_are_passed_over(made: tuple[int, int, int, float], gaps: set[int]) -> None:
    values = trace(*made)
    values[sorted(gaps)] = np.nan
    said = [event for event in events(values) if event.kind == "fail_slow"]
    assert len(said) == 1 and said[0].slowdown == pytest.approx(made[3], rel=0.03)
    assert np.isfinite(said[0].lost_s)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60))
def test_any_numbers_at_all_are_answered(numbers: list[float]) -> None:
    values = as_floats(numbers)
    for event in analyze_series(np.arange(len(values)), values, values, "nothing").events:
        assert np.isfinite(event.slowdown) and event.lost_s >= 0.0
