"""From confirmed changes to slow periods: where they begin and end, what shape they have, and what recurs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lurcher.analyze.beginning import from_start, rises_at_the_end
from lurcher.analyze.bursts import bursts
from lurcher.analyze.period import Period, as_floats, periods
from lurcher.analyze.recurring import periodic_work
from lurcher.analyze.restarts import restarts
from lurcher.analyze.shape import is_hump, is_ramp
from lurcher.records import ChangePoint

Floats = NDArray[np.float64]


def noise(num: int, scatter: float = 0.01, seed: int = 1) -> Floats:
    return 1.0 + np.random.default_rng(seed).normal(0.0, scatter, num)


def change(iteration: int, before: float, after: float, detected: int | None = None) -> ChangePoint:
    direction = "slower" if after > before else "faster"
    return ChangePoint(iteration, iteration + 6 if detected is None else detected, before, after, after, direction, "confirmed", "test", 30.0)


def found(values: Floats, *changes: ChangePoint) -> tuple[Period, ...]:
    return periods(np.arange(len(values)), values, changes)


def test_edges_are_placed_where_the_levels_change_not_where_the_detector_put_them() -> None:
    values = noise(400)
    values[100:200] *= 1.3
    (period,) = found(values, change(103, 1.0, 1.3), change(204, 1.3, 1.0))
    assert (period.first, period.last) == (100, 199)
    assert period.slowdown == pytest.approx(1.3, abs=0.01) and period.after == pytest.approx(1.0, abs=0.01)


def test_a_period_ends_before_the_next_one_begins() -> None:
    """Heavy noise: the series stays high although the detector said that it fell, up to the end of the series."""
    values = np.concatenate([np.ones(10), np.full(50, 1.3)])
    first, second = found(values, change(10, 1.0, 1.3), change(30, 1.3, 1.0), change(45, 1.0, 1.3))
    assert first.last is not None and first.last < 45 <= second.first


STEPS = st.lists(st.tuples(st.integers(1, 30), st.sampled_from([0.7, 1.0, 1.02, 1.1, 1.3, 2.0])), max_size=10)


@given(STEPS, st.integers(0, 10**6), st.sampled_from([0.01, 0.1, 0.5]))
def test_whatever_was_confirmed_periods_lie_in_order_and_apart(steps: list[tuple[int, float]], seed: int, scatter: float) -> None:
    values = np.abs(noise(200, scatter, seed)) + 0.01
    at, level, said = 20, 1.0, []
    for gap, after in steps:
        at += gap
        if after != level and at + 6 < 200:
            said.append(change(at, level, after))
            level = after
    end = -1
    for period in found(values, *said):
        assert end < period.first < 200
        end = 200 if period.last is None else period.last
        assert period.first <= end


def test_single_samples_on_the_wrong_side_move_no_edge() -> None:
    values = noise(400)
    values[100:200] *= 1.3
    values[[90, 210]] = 2.0  # checkpoints before and after it
    values[[104, 195]] = 1.0  # and two good samples within it
    (period,) = found(values, change(100, 1.0, 1.3), change(200, 1.3, 1.0))
    assert (period.first, period.last) == (100, 199)


def test_a_rise_within_a_period_belongs_to_it_and_a_small_fall_does_not_end_it() -> None:
    values = noise(500)
    values[100:200] *= 1.2
    values[200:300] *= 1.5
    values[300:400] *= 1.2
    (period,) = found(values, change(100, 1.0, 1.2), change(200, 1.2, 1.5), change(300, 1.5, 1.2), change(400, 1.2, 1.0))
    assert (period.first, period.last) == (100, 399)
    assert [step.iteration for step in period.steps] == [100, 200]


def test_two_periods_with_health_between_them_are_two() -> None:
    values = noise(600)
    values[100:200] *= 1.3
    values[300:400] *= 1.3
    several = found(values, change(100, 1.0, 1.3), change(200, 1.3, 1.0), change(300, 1.0, 1.3), change(400, 1.3, 1.0))
    assert [(p.first, p.last) for p in several] == [(100, 199), (300, 399)]


def test_a_return_that_no_change_tells_of_is_seen_afterwards() -> None:
    """A slow fall is followed by the detector's level, and confirms nothing."""
    values = noise(1000, 0.004)
    values[100:200] *= 1.3
    values[200:300] *= np.linspace(1.3, 1.0, 100)
    (period,) = found(values, change(100, 1.0, 1.3))
    assert period.last is not None and 230 <= period.last <= 300


def test_what_lasts_has_no_end() -> None:
    values = noise(300)
    values[100:] *= 1.1
    (period,) = found(values, change(100, 1.0, 1.1))
    assert (period.first, period.last, period.after) == (100, None, None)


@given(st.integers(40, 200), st.integers(10, 150), st.floats(1.1, 4.0), st.integers(0, 5), st.integers(0, 5), st.integers(0, 10**6))
def test_edges_of_a_step_in_little_noise_are_exact(onset: int, length: int, factor: float, early: int, late: int, seed: int) -> None:
    values = noise(onset + length + 100, 0.004, seed)
    values[onset : onset + length] *= factor
    (period,) = found(values, change(onset + early, 1.0, factor, onset + early + 6), change(onset + length + late, factor, 1.0))
    assert (period.first, period.last) == (onset, onset + length - 1)


def test_a_ramp_is_no_step_and_a_step_no_ramp() -> None:
    step, ramp = noise(400, 0.005), noise(400, 0.005)
    step[200:] *= 1.1
    ramp *= 1.0 + np.linspace(0.0, 0.2, 400)
    assert not is_ramp(step, found(step, change(200, 1.0, 1.1))[0])
    assert is_ramp(ramp, found(ramp, change(200, 1.0, 1.1))[0])


def test_a_hump_rises_and_falls_slowly_and_a_fault_does_not() -> None:
    box, hump = noise(500, 0.005), noise(500, 0.005)
    box[200:300] *= 1.15
    hump[200:300] *= 1.0 + 0.15 * np.sin(np.linspace(0.0, np.pi, 100))
    ends = change(200, 1.0, 1.15), change(300, 1.15, 1.0)
    assert not is_hump(box, found(box, *ends)[0])
    assert is_hump(hump, found(hump, *ends)[0])


def test_bursts_need_samples_or_height() -> None:
    values = np.ones(100)
    values[20:23] = 2.0  # three of x2: chance
    values[40:43] = 4.0  # three of x4
    values[60:65] = 2.0  # five of x2
    values[80] = 50.0
    first, second = bursts(values, 50)
    assert (first.first, first.last, first.detected) == (40, 42, 42)
    assert (second.first, second.last, second.detected) == (60, 64, 64)


def test_a_burst_that_the_series_ends_in_has_no_end() -> None:
    values = np.ones(50)
    values[47:] = 4.0
    (burst,) = bursts(values, 50)
    assert (burst.first, burst.last, burst.detected) == (47, None, 49)
    assert bursts(values[:-1], 50) == ()


def test_restarts_leave_a_lower_level_behind() -> None:
    values = np.ones(200)
    values[50] = 5.0  # a checkpoint: the level stays
    values[100] = 5.0
    values[101:] = 0.9
    (restart,) = restarts(values)
    assert (restart.first, restart.last, restart.detected) == (100, 100, 106)
    assert restarts(values[:107]) == (restart,)
    assert restarts(values[:106]) == ()


def test_periodic_work_is_one_sentence() -> None:
    iterations = np.arange(21, 1021)
    values = noise(1000)
    values[iterations % 10 == 0] *= 4.0
    values[iterations % 189 == 0] *= 1.6
    assert periodic_work(iterations, values).startswith("every 10th iteration takes x4.0")


def test_spikes_without_a_period_are_no_sentence() -> None:
    values = noise(1000)
    values[np.random.default_rng(5).choice(1000, 40, replace=False)] *= 2.3
    assert periodic_work(np.arange(1000), values) == ""
    assert periodic_work(np.arange(1000), noise(1000)) == ""


def plain_bursts(values: Floats, longest: int) -> list[tuple[int, int]]:
    """First and last sample of every run at 1.5 times the median of the 50 calm samples before, as the definition says, slowly."""
    calm: list[float] = []
    runs, run, line = [], [], np.inf
    for place, value in enumerate(values):
        if not np.isfinite(value):
            continue
        if not run:
            line = 1.5 * np.median(calm[-50:]) if len(calm) >= 3 else np.inf
        if value >= line and len(run) + 1 < longest:
            run.append(place)
            continue
        if value >= line:
            calm += [*values[run], value]
        elif run:
            runs.append((run[0], run[-1]))
        run = []
        calm.append(float(value))
    return runs + ([(run[0], run[-1])] if run else [])


@given(st.integers(0, 10**6), st.sampled_from([0.02, 0.3, 0.6]), st.sampled_from([8, 50]))
def test_bursts_against_their_definition(seed: int, scatter: float, longest: int) -> None:
    rng = np.random.default_rng(seed)
    values = np.exp(scatter * rng.standard_t(3, 300))
    for begin in rng.integers(0, 300, 5):
        values[begin : begin + rng.integers(1, 20)] *= 4.0
    values[rng.random(300) < 0.05] = np.nan
    said = [(b.first, 299 if b.last is None else b.last) for b in bursts(values, longest)]
    runs = plain_bursts(values, longest)
    assert {first for first, _ in said} <= {first for first, _ in runs} | {
        b.first for b in bursts(values, longest) if b.last and b.last - b.first + 1 >= longest
    }
    sure = {(first, last) for first, last in runs if last < 280 and np.isfinite(values[first : last + 1]).sum() >= 5}
    assert sure <= set(said)


def test_slow_from_the_start_ends_where_it_ends() -> None:
    values = noise(300)
    values[:100] *= 1.2
    period = from_start(np.arange(300), values, [change(100, 1.2, 1.0)], 18)
    assert period is not None and (period.first, period.last, period.detected_iteration) == (0, 99, 17)
    assert period.slowdown == pytest.approx(1.2, abs=0.01)
    assert from_start(np.arange(300), noise(300), [], 18) is None
    assert from_start(np.arange(17), np.full(17, 1.2), [], 18) is None


def test_a_short_series_is_judged_by_its_plainest_rise_only() -> None:
    plain = np.array([1.0, 1.0, 1.01, 1.05, 1.06])
    period = rises_at_the_end(np.arange(5), plain)
    assert period is not None and (period.first, period.detected_iteration) == (3, 4)
    assert rises_at_the_end(np.arange(4), plain[:4]) is None
    assert rises_at_the_end(np.arange(6), np.array([1.0, 1.03, 1.0, 1.05, 1.06, 1.05])) is None
    assert rises_at_the_end(np.arange(5), np.array([9.0, 1.0, 1.0, 1.05, 1.05])) is None


def test_what_is_no_duration_is_unknown() -> None:
    assert np.isnan(as_floats([0.0, -1.0, np.inf, np.nan])).all()
    assert as_floats([1.5]).tolist() == [1.5]
