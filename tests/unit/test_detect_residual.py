"""What work explains is taken out before the change test, and what it does not explain stays."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lurcher.detect.default import DefaultDetector
from lurcher.detect.drift import ANCHOR_BLOCKS, BLOCK, RECENT_BLOCKS, Anchor
from lurcher.detect.memory import Memory
from lurcher.detect.residual import FORGETTING, MIN_POINTS, WorkloadResidual


def work(num: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    tokens = rng.normal(32_000, 3_000, num)
    squares = tokens * 1_000 * np.exp(0.6 * rng.standard_normal(num))
    return tokens, squares, 0.3 + 2e-5 * tokens + 1.5e-8 * squares


def feed(fit: WorkloadResidual, seconds: np.ndarray, tokens: np.ndarray, squares: np.ndarray, *, frozen: bool = False) -> np.ndarray:
    return np.array([fit.update(*row, frozen=frozen) for row in zip(seconds.tolist(), tokens.tolist(), squares.tolist(), strict=True)])


def test_exact_work_leaves_nothing() -> None:
    tokens, squares, seconds = work(400, 0)
    fit = WorkloadResidual()
    residuals = feed(fit, seconds, tokens, squares)
    assert np.isnan(residuals[:MIN_POINTS]).all()
    assert residuals[100:] == pytest.approx(1.0, abs=5e-3)
    assert fit.expected_s(32_000, 4e7) == pytest.approx(0.3 + 2e-5 * 32_000 + 1.5e-8 * 4e7, rel=5e-3)


def test_it_is_weighted_least_squares_with_forgetting() -> None:
    """Against numpy's solution of the same weighted rows; the noise is too small to be clipped."""
    tokens, squares, seconds = work(600, 1)
    seconds = seconds * (1 + 0.002 * np.random.default_rng(2).standard_normal(600))
    fit = WorkloadResidual()
    feed(fit, seconds, tokens, squares)
    weights = FORGETTING ** (np.arange(600)[::-1] / 2) / seconds
    design = np.stack([np.ones(600), tokens, squares], 1)
    solution, *_ = np.linalg.lstsq(design * weights[:, None], seconds * weights, rcond=None)
    at = np.array([1.0, 33_000.0, 3.5e7])
    assert fit.expected_s(*at[1:]) == pytest.approx(float(at @ solution), rel=2e-3)


@pytest.mark.parametrize("scatter", [0.18, 0.3])
def test_variable_length_becomes_quiet_and_ten_per_cent_shows(scatter: float) -> None:
    delays = []
    for seed in range(20):
        tokens, squares, seconds = work(900, seed)
        seconds = seconds.mean() + (seconds - seconds.mean()) * scatter * seconds.mean() / seconds.std()
        seconds = np.maximum(seconds, 0.2) * (1 + 0.01 * np.random.default_rng(seed + 1_000).standard_normal(900))
        seconds[700:] *= 1.10
        found = []
        fit, detector = WorkloadResidual(), DefaultDetector()
        for i in range(900):
            residual = fit.update(seconds[i], tokens[i], squares[i], frozen=detector.state not in ("learning", "healthy"))
            change = detector.update(residual, i)
            if change is not None and change.tier == "confirmed":
                found.append(change)
        assert [c.direction for c in found] == ["slower"]
        delays.append(found[0].detected_iteration - 700)
        assert found[0].slowdown == pytest.approx(1.10, abs=0.02)
    assert min(delays) >= 0
    assert max(delays) <= 20


@pytest.mark.parametrize("place", range(0, MIN_POINTS, 3))
@pytest.mark.parametrize("num_spikes", [1, 2])
def test_checkpoints_among_the_first_rows_do_not_tilt_the_fit(place: int, num_spikes: int) -> None:
    """A level that is off by several percent at first and then creeps back looks like a fault that comes on slowly."""
    off = []
    for seed in range(20):
        tokens, squares, seconds = work(60, seed)
        seconds = seconds * (1 + 0.01 * np.random.default_rng(seed).standard_normal(60))
        seconds[(place + 5 * np.arange(num_spikes)) % MIN_POINTS] *= 2.5
        off.append(np.nanmedian(feed(WorkloadResidual(), seconds, tokens, squares)) - 1)
    assert max(abs(v) for v in off) < 0.035


def test_frozen_means_frozen() -> None:
    tokens, squares, seconds = work(300, 3)
    fit = WorkloadResidual()
    feed(fit, seconds, tokens, squares)
    before = fit.expected_s(32_000, 4e7)
    assert feed(fit, 1.5 * seconds, tokens, squares, frozen=True) == pytest.approx(1.5, abs=0.01)
    assert fit.expected_s(32_000, 4e7) == before


def test_work_that_never_varies_is_the_plain_level() -> None:
    """Two of three columns say the same as the first: the fit must neither break nor grow for ever."""
    fit = WorkloadResidual()
    rng = np.random.default_rng(4)
    residuals = np.array([fit.update(2.0 * (1 + 0.01 * rng.standard_normal()), 1e6, 1e9) for _ in range(30_000)])
    assert np.nanmean(residuals[-5_000:]) == pytest.approx(1.0, abs=2e-3)
    assert max(abs(v) for v in fit._inverse) < 1e5


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
@settings(max_examples=20, deadline=None)
def test_units_do_not_matter(time_unit: float, token_unit: float) -> None:
    tokens, squares, seconds = work(60, 5)
    plain = feed(WorkloadResidual(), seconds, tokens, squares)
    scaled = feed(WorkloadResidual(), time_unit * seconds, token_unit * tokens, token_unit**2 * squares)
    assert scaled[MIN_POINTS:] == pytest.approx(plain[MIN_POINTS:], rel=1e-6)


@pytest.mark.parametrize("bad", [(float("nan"), 1.0, 1.0), (1.0, float("inf"), 1.0), (0.0, 1.0, 1.0), (1.0, -1.0, 1.0)])
def test_bad_rows_are_not_learned(bad: tuple[float, float, float]) -> None:
    tokens, squares, seconds = work(50, 6)
    fit = WorkloadResidual()
    feed(fit, seconds, tokens, squares)
    same = copy.copy(fit)
    assert np.isnan(fit.update(*bad))
    assert vars(fit) == vars(same)


def test_memory_knows_white_from_correlated_from_wandering() -> None:
    rng = np.random.default_rng(7)
    shocks = rng.standard_normal(4_000)
    correlated = np.zeros(4_000)
    for i in range(1, 4_000):
        correlated[i] = 0.7 * correlated[i - 1] + np.sqrt(0.51) * shocks[i]
    for series, phi in ((shocks, 0.0), (correlated, 0.7)):
        memory = Memory()
        for i in range(1, 4_000):
            memory.add(series[i], series[i - 1])
        assert memory.known.phi == pytest.approx(phi, abs=0.1)
        assert memory.known.excess < 1.3


def test_memory_sees_a_level_that_wanders() -> None:
    rng = np.random.default_rng(8)
    series = rng.standard_normal(3_200) + np.repeat(rng.standard_normal(50), 64)
    memory = Memory()
    for i in range(1, 3_200):
        memory.add(series[i], series[i - 1])
    assert memory.known.excess > 2.0


def test_anchor_sees_a_creep_once_and_lets_go_of_it() -> None:
    anchor, rng = Anchor(), np.random.default_rng(9)
    num = BLOCK * (ANCHOR_BLOCKS + 3 * RECENT_BLOCKS)
    seen = [anchor.add((1 + 0.05 * max(0, i - 300) / num) * (1 + 0.005 * rng.standard_normal()), i) for i in range(num)]
    assert sum(seen) == 1
    assert anchor.drift is not None and anchor.drift.slowdown > 1.03
    for i in range(num, num + BLOCK * RECENT_BLOCKS):
        anchor.add(1.0, i)
    assert anchor.drift is None


def test_anchor_is_silent_on_noise() -> None:
    anchor, rng = Anchor(), np.random.default_rng(10)
    assert not any(anchor.add(1 + 0.05 * rng.standard_normal(), i) for i in range(20_000))
