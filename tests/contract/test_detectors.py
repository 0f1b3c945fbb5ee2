"""What every detector promises, run over all of them (river's habit: one suite of checks for all estimators)."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lurcher.detect.bocd import Bocd, greyhound
from lurcher.detect.cusum import Cusum
from lurcher.detect.default import DefaultDetector
from lurcher.detect.protocol import Detector
from lurcher.detect.window import SlidingWindow
from lurcher.records import ChangePoint

DETECTORS: list[Callable[[], Detector]] = [DefaultDetector, SlidingWindow, Cusum, Bocd, greyhound]
SLACK = {Cusum: 8}
"""CUSUM clips a point at 3 scatters or 6 %, and must sum up 20 scatters: iterations that it may take beyond 7."""
Series = list[float]


@pytest.fixture(params=DETECTORS, ids=lambda make: make.__name__)
def make(request: pytest.FixtureRequest) -> Callable[[], Detector]:
    return request.param


def soon(make: Callable[[], Detector]) -> int:
    """Iterations within which x1.3 at 2 % scatter must be confirmed."""
    return 7 + SLACK.get(make, 0)


def run(detector: Detector, series: Series, first: int = 0) -> list[ChangePoint]:
    found = (detector.update(value, first + i) for i, value in enumerate(series))
    return [change for change in found if change is not None]


def story(seed: int = 0, scatter: float = 0.02) -> Series:
    """60 healthy points, 40 at x1.5, 60 healthy, 60 at x1.3."""
    rng = np.random.default_rng(seed)
    level = np.repeat([1.0, 1.5, 1.0, 1.3], [60, 40, 60, 60])
    return (level * (1 + scatter * rng.standard_normal(len(level)))).tolist()


def confirmed(changes: list[ChangePoint]) -> list[ChangePoint]:
    return [c for c in changes if c.tier == "confirmed"]


def test_finds_the_story(make: Callable[[], Detector]) -> None:
    found = confirmed(run(make(), story()))
    assert [c.direction for c in found] == ["slower", "faster", "slower"]
    for change, onset in zip(found, (60, 100, 160), strict=True):
        assert abs(change.iteration - onset) <= (1 if make is not Cusum else 3)  # its estimate is where the sum was last 0
        assert onset <= change.detected_iteration <= onset + soon(make)
    assert found[0].slowdown == pytest.approx(1.5, rel=0.05)
    assert found[1].slowdown == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize("value", [1.0, 0.003, 7e4])
def test_constant_input_is_silent(make: Callable[[], Detector], value: float) -> None:
    assert run(make(), [value] * 3000) == []


@pytest.mark.parametrize("factor", [2.0**-12, 2.0**9, 0.00137, 5e5])
def test_the_unit_does_not_matter(make: Callable[[], Detector], factor: float) -> None:
    plain = run(make(), story())
    scaled = run(make(), [factor * value for value in story()])
    assert [(c.iteration, c.detected_iteration, c.direction, c.tier) for c in plain] == [
        (c.iteration, c.detected_iteration, c.direction, c.tier) for c in scaled
    ]
    assert [c.slowdown for c in plain] == pytest.approx([c.slowdown for c in scaled])
    assert [c.after_s * factor for c in plain] == pytest.approx([c.after_s for c in scaled])


def test_same_input_same_result(make: Callable[[], Detector]) -> None:
    assert run(make(), story(3)) == run(make(), story(3))


@pytest.mark.parametrize("cut", [0, 5, 17, 18, 62, 66, 90, 103, 130])
def test_pickles_in_mid_stream(make: Callable[[], Detector], cut: int) -> None:
    series = story(1)
    whole = run(make(), series)
    first = make()
    before = run(first, series[:cut])
    second = pickle.loads(pickle.dumps(first))
    assert before + run(second, series[cut:], first=cut) == whole


def test_no_look_ahead(make: Callable[[], Detector]) -> None:
    series = story(2)
    whole = run(make(), series)
    for cut in range(len(series)):
        assert run(make(), series[:cut]) == [c for c in whole if c.detected_iteration < cut]


GARBAGE = [float("nan"), float("inf"), float("-inf"), 0.0, -1.0, -1e300, 1e300]


def test_garbage_never_corrupts(make: Callable[[], Detector]) -> None:
    rng = np.random.default_rng(0)
    clean, dirty = make(), make()
    expected, found = [], []
    for i, value in enumerate(story(4)):
        for _ in range(int(rng.integers(0, 3))):
            found.append(dirty.update(float(rng.choice(GARBAGE)), i))
        found.append(dirty.update(value, i))
        expected.append(clean.update(value, i))
    assert [c for c in found if c is not None] == [c for c in expected if c is not None]


@settings(max_examples=25)
@given(st.lists(st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(0.9, 1.1), st.floats(1.3, 1.6)), max_size=120), st.data())
@pytest.mark.parametrize("build", DETECTORS, ids=lambda build: build.__name__)
def test_any_input_is_survived_and_repeats(build: Callable[[], Detector], series: Series, data: st.DataObject) -> None:
    """Whatever comes: no error, finite values, onsets that were seen, and a cut and pickled copy that goes on alike."""
    whole = run(build(), series)
    for change in whole:
        assert 0 <= change.iteration <= change.detected_iteration < len(series)
        assert all(0.0 < value < float("inf") for value in (change.before_s, change.after_s, change.slowdown))
    cut = data.draw(st.integers(0, len(series)))
    first = build()
    before = run(first, series[:cut])
    assert before + run(pickle.loads(pickle.dumps(first)), series[cut:], first=cut) == whole


def test_garbage_alone_is_silent(make: Callable[[], Detector]) -> None:
    detector = make()
    assert run(detector, GARBAGE * 50) == []
    assert confirmed(run(detector, story(), first=1000))[0].direction == "slower"


def test_iterations_need_not_be_consecutive(make: Callable[[], Detector]) -> None:
    detector = make()
    found = [detector.update(value, 500 + 100 * i) for i, value in enumerate(story())]
    first = confirmed([c for c in found if c is not None])[0]
    assert abs(first.iteration - (500 + 100 * 60)) <= 100


@pytest.mark.parametrize("numbers", [range(220, 0, -1), [7] * 220, [i % 50 for i in range(220)]], ids=["falling", "standing", "restarting"])
def test_iterations_that_do_not_rise_are_survived(make: Callable[[], Detector], numbers: list[int]) -> None:
    """A restart counts again from where it began; the values still tell the story."""
    detector = make()
    found = [detector.update(value, number) for value, number in zip(story(), numbers, strict=True)]
    assert [c.direction for c in confirmed([c for c in found if c is not None])] == ["slower", "faster", "slower"]


def test_bounded_size_and_time(make: Callable[[], Detector]) -> None:
    rng = np.random.default_rng(0)
    detector = make()
    sizes, times = [], []
    for part in range(6):
        series = (1 + 0.02 * rng.standard_normal(4000)).tolist()
        begin = time.process_time()
        run(detector, series, first=4000 * part)
        times.append(time.process_time() - begin)
        sizes.append(len(pickle.dumps(detector)))
    assert max(sizes[2:]) <= 1.1 * min(sizes[2:])
    assert max(sizes) < 20_000
    assert min(times[3:]) <= 2.0 * min(times[:3])
    assert min(times) / 4000 < 400e-6


def test_a_long_slow_period_costs_no_more(make: Callable[[], Detector]) -> None:
    """A creeping series keeps every test busy: the state stays bounded there too."""
    rng = np.random.default_rng(8)
    detector = make()
    series = (1 + 0.02 * rng.standard_normal(4000)) * (1 + np.arange(4000) / 4000)
    sizes = []
    for part in range(8):
        run(detector, series[500 * part : 500 * (part + 1)].tolist(), first=500 * part)
        sizes.append(len(pickle.dumps(detector)))
    assert max(sizes) < 30_000


def test_a_rebase_raises_no_alarm_and_learns_within_few_points(make: Callable[[], Detector]) -> None:
    rng = np.random.default_rng(5)
    detector = make()
    healthy = (1 + 0.02 * rng.standard_normal(100)).tolist()
    assert confirmed(run(detector, healthy)) == []
    detector.rebase()
    moved = (1.4 * (1 + 0.02 * rng.standard_normal(15))).tolist()
    assert run(detector, moved, first=100) == []
    slow = (1.4 * 1.5 * (1 + 0.02 * rng.standard_normal(20))).tolist()
    found = confirmed(run(detector, slow, first=115))
    assert [c.direction for c in found] == ["slower"]
    assert found[0].detected_iteration <= 115 + soon(make)
    assert found[0].slowdown == pytest.approx(1.5, rel=0.05)


def test_a_reset_is_a_new_detector(make: Callable[[], Detector]) -> None:
    detector = make()
    run(detector, story(6))
    detector.reset()
    assert run(detector, story(7)) == run(make(), story(7))


def test_every_change_has_a_reason(make: Callable[[], Detector]) -> None:
    detector = make()
    reasons = [detector.reason]
    for i, value in enumerate(story()):
        if detector.update(value, i) is not None:
            reasons.append(detector.reason)
    assert len(set(reasons)) == len(reasons) >= 4
    assert all("\n" not in reason and len(reason) > 10 for reason in reasons)
