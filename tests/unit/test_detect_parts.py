"""The default detector's parts against oracles: FOCuS, baseline, memory, bursts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from lurcher.detect.baseline import CAPACITY, SIGMA_FLOOR, Baseline
from lurcher.detect.burst import between_bursts
from lurcher.detect.correlation import inflation
from lurcher.detect.focus import Focus, Inside
from lurcher.detect.memory import MAX_PHI, Memory


def correlated(num: int, seed: int, phi: float = 0.7, sigma: float = 0.02) -> np.ndarray:
    rng = np.random.default_rng(seed)
    series, last = np.empty(num), sigma * rng.standard_normal()
    for i in range(num):
        series[i] = last
        last = phi * last + sigma * np.sqrt(1 - phi * phi) * rng.standard_normal()
    return 1 + series


# --- FOCuS ---------------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-3, 3).map(lambda x: round(x, 3)), min_size=1, max_size=60))
def test_focus_is_the_exact_maximum(points: list[float]) -> None:
    """Brute force over every start: the statistic, and the best among segments that are long and full enough."""
    focus = Focus()
    for n in range(1, len(points) + 1):
        score = focus.update(points[n - 1], n - 1)
        sums = [sum(points[i:n]) for i in range(n)]
        best = max((max(s, 0.0) ** 2 / (2 * (n - i)) for i, s in enumerate(sums)), default=0.0)
        assert score == pytest.approx(best, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1, 2), min_size=7, max_size=60), st.floats(0, 0.9), st.floats(0, 1))
def test_focus_segment_is_what_it_says(points: list[float], phi: float, min_mean: float) -> None:
    focus = Focus()
    for i, point in enumerate(points):
        focus.update(point, 100 + i)
    best = focus.best(7, 0.8, min_mean, phi)
    if best.score > 0:
        segment = points[best.iteration - 100 :]
        assert len(segment) == best.length >= 7
        assert best.fraction == pytest.approx(sum(p > 0 for p in segment) / len(segment))
        assert best.fraction >= 0.8
        assert np.mean(segment) >= min_mean - 1e-9
        assert best.score == pytest.approx(sum(segment) ** 2 / (2 * len(segment)) / inflation(len(segment), phi))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-3, 3).map(lambda x: round(x, 3)), min_size=1, max_size=60), st.floats(0.5, 4), st.floats(-0.5, 0.5))
def test_the_likeliest_rise_is_pages_cusum(points: list[float], size: float, slack: float) -> None:
    """The best start for a known size lies on the same hull: with no demands on the segment it is Page's recursion, wherever FOCuS has anything open."""
    focus, page = Focus(), 0.0
    for i, point in enumerate(points):
        open_now = focus.update(point, i) > 0
        page = max(0.0, page + point - slack - size / 2)
        found = focus.likeliest_rise(size, slack, 1, 0.0)
        if open_now and slack + size / 2 > 0:
            assert found.score == pytest.approx(size * page, abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-3, 3).map(lambda x: round(x, 3)), min_size=2, max_size=40), st.floats(0.5, 4), st.floats(-0.5, 0.5), st.floats(0, 0.9))
def test_the_likeliest_rise_is_a_likelihood_ratio(points: list[float], size: float, slack: float, phi: float) -> None:
    """Against the whole covariance matrix of an AR(1) series: densities of the segment's points with and without the rise."""
    focus = Focus()
    for i, point in enumerate(points):
        focus.update(point, i)
    found = focus.likeliest_rise(size, slack, 1, 0.0, phi)
    if found.score > 0:
        segment = np.array(points[found.iteration :])
        num = np.arange(len(segment))
        noise = multivariate_normal(np.full(len(segment), slack), phi ** np.abs(np.subtract.outer(num, num)))
        assert found.length == len(segment)
        assert found.score == pytest.approx(noise.logpdf(segment - size) - noise.logpdf(segment), abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-2, 3), min_size=5, max_size=60))
def test_how_a_segment_moves_is_told_about_its_own_mean(points: list[float]) -> None:
    focus = Focus()
    for i, point in enumerate(points):
        focus.update(point, i)
    best = focus.best(2, 0.0)
    if best.score > 0:
        off = np.array(points[best.iteration :]) - np.mean(points[best.iteration :])
        inside = focus.inside(best)
        assert inside.length == best.length == len(off)
        assert inside.square == pytest.approx((off**2).sum(), abs=1e-6)
        assert inside.product == pytest.approx((off[1:] * off[:-1]).sum(), abs=1e-6)


def test_a_level_that_is_not_sure_takes_score_away() -> None:
    """A generalised likelihood ratio of two means is that of their difference, whose variance has both parts."""
    focus = Focus()
    for i in range(10):
        focus.update(1.5, i)
    sure, unsure = focus.best(5, 0.5), focus.best(5, 0.5, offset=0.3)
    assert sure.score == pytest.approx(1.5**2 / (2 * (1 / 10)))
    assert unsure.score == pytest.approx(1.5**2 / (2 * (1 / 10 + 0.3)))
    known, guessed = (focus.likeliest_rise(2.0, 0.0, 5, 0.5, 0.5, offset) for offset in (0.0, 0.3))
    assert guessed.score == pytest.approx(known.score * inflation(10, 0.5) / (inflation(10, 0.5) + 10 * 0.3))


@pytest.mark.parametrize("phi", [0.0, 0.3, 0.7, 0.9])
@pytest.mark.parametrize("length", [1, 2, 7, 40])
def test_inflation_is_the_variance_of_a_sum(phi: float, length: int) -> None:
    """Against the sum of the whole covariance matrix."""
    lags = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
    assert inflation(length, phi) == pytest.approx((phi**lags).sum() / length)


def test_focus_stays_small() -> None:
    rng = np.random.default_rng(0)
    focus = Focus()
    for i in range(20_000):
        focus.update(0.0001 * i + rng.standard_normal(), i)
    assert len(focus._starts) <= 24


# --- baseline ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num", [18, 60, 300])
def test_scatter_is_neither_lost_nor_blown_up(num: int) -> None:
    rng = np.random.default_rng(num)
    ratios = []
    for _ in range(200):
        baseline = Baseline((5.0 * (1 + 0.03 * rng.standard_normal(num))).tolist())
        assert baseline.level == pytest.approx(5.0, rel=0.04)
        ratios.append(baseline.sigma / 0.03)
    assert 1.0 <= np.median(ratios) <= 1.25
    assert np.quantile(ratios, 0.02) > 0.6


@pytest.mark.parametrize("phi", [0.0, 0.7])
@pytest.mark.parametrize("num", [18, 100])
def test_a_level_is_as_sure_as_its_points_are_independent(phi: float, num: int) -> None:
    errors, said = [], []
    for seed in range(400):
        scale = Baseline(correlated(num, seed, phi).tolist()).scale()
        errors.append((scale.level - 1) / 0.02)
        said.append(scale.offset(phi))
    assert np.mean(np.square(errors)) == pytest.approx(np.mean(said), rel=0.35)


def test_spikes_do_not_widen_it_much() -> None:
    rng = np.random.default_rng(0)
    points = 1 + 0.02 * rng.standard_normal(300)
    points[::50] *= 4
    assert Baseline(points.tolist()).sigma < 0.025
    assert Baseline([3.0] * 20).sigma >= SIGMA_FLOOR


def test_a_settled_baseline_follows_a_creep_but_no_step() -> None:
    baseline = Baseline([1.0] * CAPACITY)
    for _ in range(100):
        baseline.add(2.0)
    assert baseline.level < 1.0021
    for i in range(40_000):
        baseline.add(1.0 + 5e-6 * i)
    assert baseline.level == pytest.approx(1.2, abs=0.01)


# --- memory --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phi", [0.0, 0.7])
def test_phi_is_not_underrated_and_a_segment_helps_to_tell_it(phi: float) -> None:
    """Of 18 points hardly anything can be told; 60 points of a segment, about their own mean, tell a wave from a new level."""
    alone, joined = [], []
    for seed in range(300):
        memory = Memory()
        zs = ((correlated(18, seed, phi) - 1) / 0.02).tolist()
        for before, z in itertools.pairwise(zs):
            memory.add(z, before)
        off = (correlated(60, 5_000 + seed, phi) - 1) / 0.02
        off -= off.mean()
        alone.append(memory.known.phi)
        joined.append(memory.with_segment(Inside(float((off**2).sum()), float((off[1:] * off[:-1]).sum()), 60)).phi)
    assert np.quantile(joined, 0.02) > phi - 0.05
    assert np.median(joined) < min(phi + 0.3, MAX_PHI + 1e-9)
    assert np.median(alone) > np.median(joined) + (0.1 if phi == 0 else -1e-9)


def test_what_is_clipped_tells_nothing_of_correlation() -> None:
    memory = Memory()
    for before, z in itertools.pairwise(np.random.default_rng(0).standard_normal(40).tolist()):
        memory.add(z, before)
    same = memory.with_segment(Inside(0.0, 0.0, 500))
    assert same.num_points == memory.known.num_points
    assert same.phi >= memory.known.phi


# --- bursts in the first points ------------------------------------------------------------------------------------------


def test_a_burst_is_cut_out_and_waves_and_spikes_are_not() -> None:
    points = (1 + 0.03 * np.random.default_rng(2).standard_normal(18)).tolist()
    assert between_bursts(points, 0.08) == [points]
    burst = [*points[:7], *(1.5 * p for p in points[7:12]), *points[12:]]
    assert between_bursts(burst, 0.08) == [points[:7], points[12:]]
    warm = [*(3.0 * p for p in points[:4]), *points[4:]]
    assert between_bursts(warm, 0.08) == [points[4:]]
    spikes = [3.0 * p if i in (2, 3, 9) else p for i, p in enumerate(points)]
    assert between_bursts(spikes, 0.08) == [spikes]
    assert between_bursts([1.0] * 9 + [2.0] * 9, 0.08) == [[1.0] * 9 + [2.0] * 9]
    for seed in range(200):
        wave = correlated(18, seed).tolist()
        assert between_bursts(wave, 0.08) == [wave]
