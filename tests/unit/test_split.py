"""The split against brute force, with the walk as cost; ties, caps, refusals; and the bound against the best split there is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lurcher.errors import UserError
from lurcher.layout import Layout
from lurcher.model.critical_path import makespans_by_count
from lurcher.plan.bound import bound_s
from lurcher.plan.split import min_max_split, proportional_costs

Floats = NDArray[np.float64]


def all_splits(num_microbatches: int, num_replicas: int, min_each: int) -> list[tuple[int, ...]]:
    counts = range(min_each, num_microbatches + 1)
    return [s for s in itertools.product(counts, repeat=num_replicas) if sum(s) == num_microbatches]


def worst(times: list[Floats], split: tuple[int, ...]) -> float:
    return max(float(table[m]) for table, m in zip(times, split, strict=True))


def walk_table(rng: np.random.Generator, cap: int) -> Floats:
    """T_i(m) of a replica of 1-4 stages, one of them possibly slow."""
    f = np.ones(int(rng.integers(1, 5))) * rng.choice([1.0, rng.uniform(0.8, 1.2)])
    if rng.random() < 0.5:
        f[rng.integers(len(f))] *= rng.choice([1.5, 2.0, rng.uniform(1, 4)])
    return makespans_by_count("1f1b", f, 2 * f, cap)


def test_equals_brute_force_on_two_thousand_cases_with_the_walk_as_cost() -> None:
    rng = np.random.default_rng(5)
    tables = [walk_table(rng, 9) for _ in range(120)]
    for _ in range(2000):
        num_replicas = int(rng.integers(1, 4))
        min_each = int(rng.integers(0, 2))
        num_microbatches = int(rng.integers(max(1, num_replicas * min_each), 10))
        times = [tables[i] for i in rng.integers(len(tables), size=num_replicas)]
        found = min_max_split(times, num_microbatches, min_each)
        assert sum(found) == num_microbatches and min(found) >= min_each
        assert worst(times, found) == min(worst(times, split) for split in all_splits(num_microbatches, num_replicas, min_each))


def test_equals_handing_out_one_by_one_where_brute_force_cannot_count() -> None:
    """The greedy of the textbook: each next micro-batch to the replica that then ends earliest. 128 replicas, some slow, some small."""
    rng = np.random.default_rng(9)
    tables = [walk_table(rng, int(rng.integers(9, 20))) for _ in range(60)]
    times = [tables[i] for i in rng.integers(len(tables), size=128)]
    handed = [0] * 128
    for _ in range(1024):
        i = min((i for i in range(128) if handed[i] + 1 < len(times[i])), key=lambda i: float(times[i][handed[i] + 1]))
        handed[i] += 1
    found = min_max_split(times, 1024, 0)
    assert sum(found) == 1024
    assert worst(times, found) == worst(times, tuple(handed))


def test_moves_no_more_than_an_optimal_split_needs() -> None:
    rng = np.random.default_rng(6)
    for _ in range(300):
        num_replicas, num_microbatches = 3, 9
        times = [np.cumsum(rng.integers(0, 3, num_microbatches + 1)).astype(np.float64) for _ in range(num_replicas)]  # many ties
        splits = all_splits(num_microbatches, num_replicas, 1)
        present = splits[int(rng.integers(len(splits)))]
        best = min(worst(times, split) for split in splits)
        least = min(sum(abs(a - b) for a, b in zip(split, present, strict=True)) for split in splits if worst(times, split) == best)
        found = min_max_split(times, num_microbatches, present=present)
        assert worst(times, found) == best
        assert sum(abs(a - b) for a, b in zip(found, present, strict=True)) == least


@given(st.lists(st.floats(0.5, 4.0), min_size=1, max_size=6), st.integers(6, 40))
def test_a_faster_replica_never_makes_the_best_split_slower(rates: list[float], num_microbatches: int) -> None:
    times = [proportional_costs(1 / rate, num_microbatches) for rate in rates]
    before = worst(times, min_max_split(times, num_microbatches))
    times[0] = proportional_costs(1 / (2 * rates[0]), num_microbatches)
    assert worst(times, min_max_split(times, num_microbatches)) <= before


def test_healthy_replicas_keep_the_present_split_when_it_is_as_good() -> None:
    times = [proportional_costs(1.0, 12)] * 3
    assert min_max_split(times, 11) == (4, 4, 3)
    assert min_max_split(times, 11, present=(3, 4, 4)) == (3, 4, 4)
    assert min_max_split(times, 12, present=(6, 3, 3)) == (4, 4, 4)


def test_present_below_the_minimum_is_raised() -> None:
    times = [proportional_costs(1.0, 6)] * 3
    assert min_max_split(times, 6, present=(3, 3, 0)) == (2, 2, 2)
    flat = [np.zeros(7)] * 3
    assert min_max_split(flat, 6, present=(3, 3, 0)) == (3, 2, 1)


def test_caps_bind_and_a_dead_replica_gets_nothing() -> None:
    times = [proportional_costs(1.0, 12), proportional_costs(1.0, 3), np.concatenate([[0.0], np.full(12, np.inf)])]
    assert min_max_split(times, 12, min_each=0) == (9, 3, 0)


def test_a_pipeline_counts_its_fill() -> None:
    """GREYHOUND's cost with the fill of a 1F1B pipeline: the larger of two equal rates is not twice the smaller."""
    assert min_max_split([proportional_costs(2.0, 16, 3), proportional_costs(1.0, 16, 3)], 16) == (4, 12)
    assert min_max_split([proportional_costs(2.0, 16), proportional_costs(1.0, 16)], 16) == (5, 11)


@pytest.mark.parametrize(
    ("caps", "num_microbatches", "min_each", "named"),
    [((4, 4), 9, 1, "do not fit"), ((4, 4), 1, 1, "cannot give each"), ((4, 0), 4, 1, "do not fit"), ((), 4, 0, "at least one replica")],
)
def test_what_cannot_fit_is_refused(caps: tuple[int, ...], num_microbatches: int, min_each: int, named: str) -> None:
    with pytest.raises(UserError, match=named):
        min_max_split([proportional_costs(1.0, cap) for cap in caps], num_microbatches, min_each)


def test_a_falling_table_is_a_mistake_of_the_caller() -> None:
    for table in ([0.0, 2.0, 1.0, 3.0, 4.0], [0.0, 1.0, np.nan, 3.0, 4.0]):
        with pytest.raises(ValueError, match="falls or has a NaN"):
            min_max_split([np.arange(5.0), np.array(table)], 4)
    assert min_max_split([np.arange(5.0), np.arange(5.0)], 4) == (2, 2)  # where a table ends and the next begins is no fall


def test_the_bound_is_below_the_best_split_of_random_slow_jobs() -> None:
    rng = np.random.default_rng(8)
    for _ in range(300):
        dp, pp, tp = int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(1, 3))
        m = int(rng.integers(dp, 15))
        layout = Layout.uniform(tp=tp, pp=pp, dp=dp, num_layers=pp, num_microbatches=m)
        slow = {int(r): float(rng.uniform(1, 4)) for r in rng.integers(dp * pp * tp, size=rng.integers(0, 3))}
        times = []
        for replica in layout.replicas:
            f = np.array([max(slow.get(r, 1.0) for r in stage.ranks) for stage in replica.stages])
            times.append(makespans_by_count("1f1b", f, 2 * f, m))
        overhead_s = float(rng.choice([0.0, 2.0]))
        healthy_s = float(makespans_by_count("1f1b", np.ones(pp), np.full(pp, 2.0), m)[max(layout.split)]) + overhead_s
        longest_s = max(float(table[1]) for table in times)
        bound = bound_s(healthy_s, layout, slow, longest_s=longest_s, overhead_s=overhead_s)
        best = min(worst(times, split) for split in all_splits(m, dp, 1)) + overhead_s
        slack = 0.0 if m >= 2 * dp * pp else 0.03  # a bubble as long as the work can hide part of a slow stage
        assert bound <= best * (1 + slack) + 1e-9, (layout.split, slow)


def test_the_bound_of_a_healthy_job_is_its_healthy_time() -> None:
    layout = Layout.uniform(tp=2, pp=2, dp=2, num_layers=4, num_microbatches=16)
    assert bound_s(1.5, layout, {}) == 1.5
    assert bound_s(1.5, layout, {0: 2.0}) == pytest.approx(1.5 * 8 / 7.5)
    assert bound_s(1.5, layout, {0: 2.0}, longest_s=9.0) == 9.0
