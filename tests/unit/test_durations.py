"""Learned thresholds: inside the promise, exact where a brute force can tell, and never dear on the papers' faults."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lurcher.errors import UserError
from lurcher.plan.durations import OTHER_MEAN_S, REMEMBERED, Durations, episode_costs_s, learned_levels
from lurcher.plan.ladder import LadderState, Level, step, worst_case

LEVELS = (Level("S2", 5.0), Level("S3", 60.0), Level("S4", 1800.0))
RATES = (0.7, 0.105, 0.07, 0.0)


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    """bench/ is no package: its files find each other because a script's own folder is on the path."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
    import ladder

    yield ladder
    sys.path.pop(0)


def walked_cost(levels: tuple[Level, ...], rates: tuple[float, ...], duration_s: float, tick_s: float) -> float:
    """The same episode through the ladder itself, iteration by iteration."""
    state, total = LadderState(), 0.0
    for _ in range(round(duration_s / tick_s)):
        loss_s = rates[state.level] * tick_s
        total += loss_s
        state, decision, _ = step(state, loss_s, levels, fault="x")
        if decision.kind == "apply":
            total += levels[state.level - 1].cost_s
    return total


def test_episode_costs_are_what_the_ladder_pays() -> None:
    rng = random.Random(0)
    for _ in range(60):
        costs = sorted(rng.uniform(1, 20) for _ in range(rng.randint(1, 3)))
        at_s = list(np.maximum.accumulate([c * rng.uniform(0.5, 2) for c in costs]))
        levels = tuple(Level(str(i), c, float(t)) for i, (c, t) in enumerate(zip(costs, at_s, strict=True)))
        rates = tuple(sorted((rng.uniform(0, 1) for _ in range(len(costs) + 1)), reverse=True))
        duration_s = rng.uniform(1, 120)
        if min(abs(duration_s - b) for b in [0.0, *np.cumsum(np.diff([0, *at_s]) / rates[:-1])]) < 0.5:
            continue  # the purchase falls on the fault's last iteration: either is right
        exact = episode_costs_s(np.array(costs), np.array([at_s]), rates, np.array([duration_s]))[0, 0]
        assert walked_cost(levels, rates, duration_s, 0.01) == pytest.approx(exact, abs=0.1)


@settings(max_examples=60, deadline=None)
@given(
    costs=st.lists(st.floats(0.1, 5000), min_size=1, max_size=4).map(sorted),
    left=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    loss=st.floats(0.01, 3),
    seen=st.lists(st.floats(0.1, 1e5), max_size=12),
    rho=st.floats(2, 6),
)
def test_learned_thresholds_keep_the_promise(costs: list[float], left: list[float], loss: float, seen: list[float], rho: float) -> None:
    levels = tuple(Level(str(i), c) for i, c in enumerate(costs))
    rates = (loss, *(loss * x for x in sorted(left[: len(costs)], reverse=True)))
    known = Durations(600.0, tuple(seen))
    found = learned_levels(levels, rates, known, rho)
    assert found == learned_levels(levels, rates, known, rho)
    assert [level.cost_s for level in found] == costs
    assert worst_case(found) <= max(rho, worst_case(levels)) * (1 + 1e-6)
    durations_s, weights = known.weighted()
    mean_s = [
        float((episode_costs_s(np.array(costs), np.array([[x.at_s for x in rule]]), rates, durations_s) @ weights)[0]) for rule in (found, levels)
    ]
    assert mean_s[0] <= mean_s[1] * (1 + 1e-9)  # break-even is always among the candidates
    assert all(level.at_s <= max(costs) * (rho - 1) * (1 + 1e-9) for level in found)


@pytest.mark.parametrize("rho", [2.0, 2.5, 3.0, 5.0])
def test_one_level_stays_in_the_interval_and_reaches_its_ends(rho: float) -> None:
    """Long faults are answered as early as the promise allows, short ones as late."""
    level = Level("S3", 60.0)
    long, short = (Durations(600.0, (d,) * 60) for d in (50_000.0, 45.0))
    assert learned_levels([level], (1.0, 0.1), long, rho)[0].at_s == pytest.approx(60.0 / (rho - 1))
    late_s = learned_levels([level], (1.0, 0.1), short, rho)[0].at_s
    assert 45.0 < late_s <= 60.0 * (rho - 1) * (1 + 1e-9)  # never bought by those: they end at a loss of 45 s
    assert learned_levels([level], (0.5, 0.0), Durations(1.0, (90.0,) * 90), 3.0)[0].at_s > 45.0  # never bought: they end at a loss of 45 s


def test_the_least_mean_cost_is_found() -> None:
    """Against a much finer search: one level, so that the grid can be fine."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        known = Durations(float(rng.uniform(50, 1000)), tuple(rng.exponential(300, 30)))
        durations_s, weights = known.weighted()
        cost_s, rates = np.array([rng.uniform(5, 200)]), (float(rng.uniform(0.1, 1)), 0.02)
        fine = np.geomspace(cost_s / 2, cost_s * 2, 400)
        best_s = (episode_costs_s(cost_s, fine, rates, durations_s) @ weights).min()
        found = learned_levels([Level("x", float(cost_s[0]))], rates, known, 3.0)[0].at_s
        mean_s = float((episode_costs_s(cost_s, np.array([[found]]), rates, durations_s) @ weights)[0])
        assert best_s - 1e-9 <= mean_s <= best_s * 1.03


def test_what_is_known_moves_from_the_papers_to_what_was_seen() -> None:
    known = Durations.of("communication")
    durations_s, weights = known.weighted()
    assert durations_s @ weights == pytest.approx(1440.0) and Durations.of("host").mean_s == OTHER_MEAN_S
    for _ in range(200):
        known = known.after(50.0)
    durations_s, weights = known.weighted()
    assert len(known.ended_s) == REMEMBERED and durations_s @ weights < 120.0
    assert weights.sum() == pytest.approx(1.0)


def test_a_fault_that_has_lasted_is_expected_to_last_on() -> None:
    known = Durations.of("compute")
    left = [known.remaining_s(t) for t in (0.0, 60.0, 600.0)]
    assert left[0] == pytest.approx(600.0) and left == sorted(left)
    assert known.remaining_s(1e9) == 1e9


@pytest.mark.parametrize(
    ("rates", "rho", "words"),
    [
        ((1.0, 0.5), 3.0, "loss rates"),
        ((1.0, 0.5, 0.1, -1.0), 3.0, "loss rates"),
        (RATES, 1.9, "give 2 or more"),
        (RATES, float("nan"), "give 2 or more"),
    ],
)
def test_bad_input_is_refused(rates: tuple[float, ...], rho: float, words: str) -> None:
    with pytest.raises(UserError, match=words):
        learned_levels(LEVELS, rates, Durations.of("compute"), rho)


@pytest.mark.parametrize("duration_s", [0.0, -1.0, float("inf"), float("nan")])
def test_no_duration_is_learned_from_nonsense(duration_s: float) -> None:
    with pytest.raises(UserError, match="cannot be learned from"):
        Durations.of("compute").after(duration_s)


def test_rho_2_is_algorithm_1() -> None:
    assert [level.threshold_s for level in learned_levels(LEVELS, RATES, Durations.of("compute"), 2.0)] == [None] * 3


def test_mean_cost_on_the_papers_faults(bench: ModuleType) -> None:
    """All 72 settings, a few episodes each: both rules stay within 1.25 of the best in hindsight on average."""
    assert len(bench.settings()) == 72
    rows = {(row["rule"], row["cause"]): row for row in bench.ratios(25, seed=3, rhos=(3.0,))}
    for cause in ("compute", "communication"):
        published, learned = rows["break-even (Algorithm 1)", cause], rows["learned, rho 3", cause]
        assert published["mean"] <= 1.25 + 0.03 and published["worst episode"] <= 2.1  # 25 episodes scatter by about 0.02
        assert learned["mean"] <= 1.25 and learned["worst episode"] <= 3.0 + 1e-9
        assert learned["mean"] < published["mean"]


def test_the_best_in_hindsight_is_no_dearer_than_any_plan(bench: ModuleType) -> None:
    """Brute force over every moment at which each level could be taken."""
    rng = random.Random(4)
    for setting in rng.sample(bench.settings(), 12):
        duration_s = rng.uniform(10, 20_000)
        best_s = bench.best_in_hindsight(setting, np.array([duration_s]))[0]
        costs_s = np.array([level.cost_s for level in setting.levels])
        tries = np.sort(np.array([[rng.expovariate(1 / 500) for _ in costs_s] for _ in range(300)]), axis=1)
        assert best_s <= episode_costs_s(costs_s, tries, setting.rates, np.array([duration_s])).min() + 1e-9
