"""The plain detectors against slow and literal writings of the same rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import t as student

from lurcher.detect.bocd import Bocd, RunLengths, greyhound
from lurcher.detect.cusum import Cusum
from lurcher.detect.protocol import Detector
from lurcher.detect.window import SlidingWindow
from lurcher.records import ChangePoint


def run(detector: Detector, series: np.ndarray) -> list[ChangePoint]:
    found = (detector.update(value, i) for i, value in enumerate(series.tolist()))
    return [change for change in found if change is not None]


# --- BOCD ----------------------------------------------------------------------------------------------------------------


def literal_posterior(series: np.ndarray, sigma: float, hazard: float) -> np.ndarray:
    """Algorithm 1 by its definition: for each possible run, Student's t of every point given the points of the run before it."""
    kappa0, alpha0, beta0 = 0.01, 2.0, 2.0 * sigma**2

    def predictive(x: float, run: np.ndarray) -> float:
        n = len(run)
        mean = run.mean() if n else 0.0
        kappa, alpha = kappa0 + n, alpha0 + n / 2
        mu = (kappa0 * 1.0 + n * mean) / kappa
        beta = beta0 + 0.5 * ((run - mean) ** 2).sum() + kappa0 * n * (mean - 1.0) ** 2 / (2 * kappa)
        return float(student.logpdf(x, 2 * alpha, mu, np.sqrt(beta * (kappa + 1) / (alpha * kappa))))

    mass = {0: 0.0}
    for i, x in enumerate(series):
        joint = {r: m + predictive(x, series[i - r : i]) for r, m in mass.items()}
        grown = {r + 1: m + np.log1p(-hazard) for r, m in joint.items()}
        grown[0] = float(logsumexp(list(joint.values()))) + np.log(hazard)
        whole = logsumexp(list(grown.values()))
        mass = {r: m - whole for r, m in grown.items()}
    return np.exp([mass[r] for r in range(len(series) + 1)])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=40), st.sampled_from([0.01, 0.05]))
def test_run_lengths_are_the_posterior(points: list[float], sigma: float) -> None:
    runs = RunLengths(sigma, mean_run=50.0, max_run=60)
    for x in points:
        runs.update(x)
    expected = literal_posterior(np.array(points), sigma, 1 / 50)
    assert np.exp(runs.log_mass[: len(expected)]) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_the_mass_of_r_0_is_the_hazard_whatever_comes() -> None:
    """Which is why P(r = 0) > 0.9, as GREYHOUND states it, can never report anything."""
    runs = RunLengths(0.02, mean_run=250.0)
    for x in [1.0] * 30 + [1.5] * 3:
        runs.update(x)
        assert runs.mass_up_to(0) == pytest.approx(1 / 250)
    assert runs.mass_up_to(9) > 0.9


def test_a_bounded_posterior_stays_one_and_close_to_the_unbounded() -> None:
    rng = np.random.default_rng(0)
    short, long = RunLengths(0.02, max_run=100), RunLengths(0.02, max_run=1500)
    series = 1 + 0.02 * rng.standard_normal(1200)
    series[1000:] *= 1.1
    for i, x in enumerate(series.tolist()):
        short.update(x)
        long.update(x)
        assert short.mass_up_to(100) == pytest.approx(1.0)
        if i in (900, 1003, 1010):
            assert short.mass_up_to(9) == pytest.approx(long.mass_up_to(9), abs=0.05)


@pytest.mark.parametrize(("size", "plain", "verified"), [(1.3, True, True), (1.2, True, True), (1.06, True, False)])
def test_verification_drops_what_is_smaller_than_ten_per_cent(size: float, plain: bool, verified: bool) -> None:
    series = 1 + 0.01 * np.random.default_rng(1).standard_normal(300)
    series[200:] *= size
    for make, expected in ((Bocd, plain), (greyhound, verified)):
        found = run(make(), series)
        assert bool(found) == expected
        if found:
            assert found[0].iteration == 200
            assert found[0].detected_iteration <= 204
            assert found[0].slowdown == pytest.approx(size, abs=0.03)


def test_one_spike_is_jitter_to_greyhound_and_its_reason_says_so() -> None:
    series = 1 + 0.01 * np.random.default_rng(2).standard_normal(130)
    series[100] = 3.0
    detector = greyhound()
    assert run(detector, series) == []
    assert "jitter" in detector.reason


# --- CUSUM ---------------------------------------------------------------------------------------------------------------


def test_cusum_alarms_when_the_literal_sum_passes_the_threshold() -> None:
    """No noise: with level 1 and the floor of the scatter, 0.4 % widened by 18 to 300 points, the sum grows by a known step."""
    detector = Cusum(threshold=20.0)
    series = np.concatenate([np.ones(400), np.full(100, 1.035)])
    (change,) = run(detector, series)
    sigma = 0.004 * (1 + 0.7 / np.sqrt(300))
    step = (0.035 - 0.025) / sigma
    assert change.iteration == 400
    # Before it has a third of the threshold the baseline still learns, in steps of at most 2e-5.
    assert change.detected_iteration - 399 == pytest.approx(20.0 / step, abs=2)


def test_cusum_is_blind_to_half_of_what_it_is_set_to() -> None:
    series = 1 + 0.01 * np.random.default_rng(3).standard_normal(2_000)
    series[400:] *= 1.015
    assert run(Cusum(), series) == []


# --- sliding window ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("against", ["median", "mean"])
def test_the_window_alarms_exactly_when_its_ratio_passes(against: str) -> None:
    rng = np.random.default_rng(4)
    series = 1 + 0.05 * rng.standard_normal(400)
    series[250:] *= 1.12
    reduce = np.median if against == "median" else np.mean
    (first, *_) = run(SlidingWindow(against=against), series)  # type: ignore[arg-type]
    ratios = [series[i - 9 : i + 1].mean() / reduce(series[max(0, i - 59) : i - 9]) for i in range(29, 400)]
    expected = next(i for i, ratio in enumerate(ratios, 29) if not 1 / 1.1 <= ratio <= 1.1)
    assert first.detected_iteration == expected


def test_the_window_misses_what_is_below_its_ratio() -> None:
    series = 1 + 0.005 * np.random.default_rng(5).standard_normal(500)
    series[200:] *= 1.07
    assert run(SlidingWindow(), series) == []


def test_the_window_takes_a_spike_for_a_change_and_says_when_it_left() -> None:
    series = np.ones(200)
    series[100] = 3.0
    found = run(SlidingWindow(), series)
    assert found[0].direction == "slower"
    assert found[0].iteration == 100
