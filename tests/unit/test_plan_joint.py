"""The joint planner: as good as trying everything, never worse than the present layout, near its bound at scale."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from bench.joint_small import random_small, true_best
from hypothesis import given, settings
from hypothesis import strategies as st

from lurcher.layout import LayerRange, Layout, Replica, Stage
from lurcher.model.price import price
from lurcher.model.rates import LinkRate, Rates
from lurcher.plan.cells import make_cells
from lurcher.plan.cuts import EVEN, cut
from lurcher.plan.detour import detour
from lurcher.plan.exhaust import partitions
from lurcher.plan.gather import gathered, grids, slow_cells
from lurcher.plan.group_choice import best_group
from lurcher.plan.joint import plan_all, propose_joint
from lurcher.plan.problem import Problem
from lurcher.plan.shop import Shop
from lurcher.plan.situation import assess
from lurcher.records import Plan

EIGHT = Rates(
    forward_s=0.08,
    backward_s=0.16,
    launch_s=2e-5,
    tp_efficiency=(1.0, 0.98, 0.97, 0.96, 0.95, 0.94, 0.93, 0.92),
    hop_bytes=16e6,
    sync_bytes_per_layer=3.2e9,
    optimizer_layer_s=0.02,
    overhead_s=0.05,
    link_bytes_per_s=50e9,
    node_bytes_per_s=450e9,
    device_bytes=80e9,
    layer_bytes=14.4e9,
    activation_bytes=2e9,
)


def job(num_nodes: int, num_stages: int, per_replica: int, seed: int, rates: Rates = EIGHT) -> Problem:
    """Nodes of 8 as stages, 2 % of the ranks slow or dead, some links slow."""
    rng = random.Random(seed)
    dp = num_nodes // num_stages
    layout = Layout.uniform(tp=8, pp=num_stages, dp=dp, num_layers=8 * num_stages, num_microbatches=dp * per_replica)
    hit = rng.sample(range(8 * num_nodes), max(2, 8 * num_nodes // 50))
    dead = tuple(sorted(rank for rank in hit if rng.random() < 0.3))
    slow = {rank: 1 / rng.uniform(0.4, 0.9) for rank in hit if rank not in dead}
    links = tuple(LinkRate(node, (node + num_stages) % num_nodes, 5.0) for node in rng.sample(range(num_nodes), 2))
    rates = msgspec.structs.replace(rates, slowdown=slow, dead=dead, links=links)
    return Problem(layout=layout, rates=rates, causes=("compute", "communication"), num_atoms=128)


def best_of(problem: Problem) -> Plan:
    return min(plan_all(problem), key=lambda plan: plan.predicted_s)


@pytest.mark.parametrize("seed", [4, 8, 12, 15, 16, 19, 21, 25, 26, 27, 29, 35, 39])
def test_within_two_per_cent_of_trying_everything(seed: int) -> None:
    problem = random_small(random.Random(seed))
    plans = [plan for plan in plan_all(problem) if not plan.layout.routes]
    assert min(plan.predicted_s for plan in plans) <= 1.02 * true_best(problem)


@pytest.mark.parametrize("seed", range(8))
def test_plans_are_valid_ranked_and_never_worse(seed: int) -> None:
    problem = random_small(random.Random(100 + seed))
    plans = plan_all(problem)
    assert plans == plan_all(problem)
    keeps = [plan for plan in plans if plan.actions[0].kind == "keep"]
    assert [plan.layout for plan in keeps] == [problem.layout]
    assert plans[0].predicted_s <= keeps[0].present_s
    ranks = set(problem.layout.ranks)
    for plan in plans:
        assert plan.predicted_s == pytest.approx(price(plan.layout, problem.rates, problem.schedule).iteration_s)
        assert 0 < plan.bound_s <= plan.predicted_s
        assert set(plan.layout.ranks) | set(plan.layout.standby) == ranks
        assert plan.layout.num_microbatches == problem.layout.num_microbatches
        if plan is not keeps[0]:
            assert plan.predicted_s < plan.present_s
            assert set(problem.rates.dead).isdisjoint(plan.layout.ranks)
    costs = [plan.predicted_s + plan.pause_s / problem.remaining_iterations for plan in plans]
    assert costs == sorted(costs)


@pytest.mark.parametrize(("num_nodes", "num_stages", "per_replica"), [(64, 4, 8), (64, 8, 64), (128, 4, 8)])
@pytest.mark.parametrize("seed", [1, 2])
def test_near_the_bound_at_scale(num_nodes: int, num_stages: int, per_replica: int, seed: int) -> None:
    best = best_of(job(num_nodes, num_stages, per_replica, seed))
    assert best.gap <= 0.05
    assert price(best.layout, job(num_nodes, num_stages, per_replica, seed).rates).fits


def test_healthy_job_is_kept() -> None:
    layout = Layout.uniform(tp=2, pp=2, dp=2, num_layers=4, num_microbatches=16)
    plans = plan_all(Problem(layout=layout, rates=Rates(forward_s=1.0, backward_s=2.0, ranks_per_node=2), num_atoms=8))
    assert [plan.actions[0].kind for plan in plans] == ["keep"]
    assert plans[0].gap == pytest.approx(0.0, abs=1e-3)


def test_slow_link_moves_groups_and_never_shares_work_out_anew() -> None:
    layout = Layout.uniform(tp=1, pp=2, dp=4, num_layers=4, num_microbatches=32)
    rates = Rates(
        forward_s=0.1,
        backward_s=0.2,
        ranks_per_node=1,
        sync_bytes_per_layer=1e9,
        hop_bytes=1e6,
        link_bytes_per_s=10e9,
        node_bytes_per_s=100e9,
        links=(LinkRate(0, 2, 8.0),),
    )
    plans = plan_all(Problem(layout=layout, rates=rates, causes=("communication",), num_atoms=8))
    healthy_s = price(layout, msgspec.structs.replace(rates, links=())).iteration_s
    assert plans[0].predicted_s == pytest.approx(healthy_s)
    assert {action.kind for plan in plans for action in plan.actions} <= {"keep", "swap", "consolidate", "restart"}
    assert all(plan.layout.split == layout.split for plan in plans)


def test_dead_node_shortens_a_replica_or_ends_it() -> None:
    """Nodes 0 to 7 as two replicas of four stages; node 5 is dead. With memory for one more layer a stage the replica goes on with three."""
    layout = Layout.uniform(tp=8, pp=4, dp=2, num_layers=12, num_microbatches=32)
    rates = msgspec.structs.replace(EIGHT, dead=tuple(range(40, 48)), device_bytes=0.0)
    best = best_of(Problem(layout=layout, rates=rates, causes=("compute",), num_atoms=128))
    assert sorted(len(replica.stages) for replica in best.layout.replicas) == [3, 4]
    tight = msgspec.structs.replace(rates, device_bytes=13e9, activation_bytes=0.0, layer_bytes=32e9)  # 3 layers on 8 ranks are 12 GB
    assert price(layout, msgspec.structs.replace(tight, dead=())).fits
    best = best_of(Problem(layout=layout, rates=tight, causes=("compute",), num_atoms=128))
    assert [len(replica.stages) for replica in best.layout.replicas] == [4]


def test_spare_node_takes_the_place_of_a_slow_one() -> None:
    layout = msgspec.structs.replace(Layout.uniform(tp=8, pp=2, dp=4, num_layers=16, num_microbatches=64), standby=tuple(range(64, 72)))
    rates = msgspec.structs.replace(EIGHT, slowdown=dict.fromkeys(range(16, 24), 2.0))
    best = best_of(Problem(layout=layout, rates=rates, causes=("compute",), num_atoms=128))
    assert set(range(16, 24)) <= set(best.layout.standby)
    assert best.predicted_s == pytest.approx(price(layout, EIGHT).iteration_s, rel=0.02)


def test_interleaved_stages_are_left_to_the_single_changes() -> None:
    stages = (Stage((0,), (1,), (LayerRange(0, 1), LayerRange(2, 3))), Stage((1,), (1,), (LayerRange(1, 2), LayerRange(3, 4))))
    layout = Layout(4, 8, (Replica(stages, 8),))
    rates = Rates(forward_s=1.0, backward_s=2.0, ranks_per_node=1, slowdown={1: 1.5})
    assert propose_joint(assess(layout, rates, causes=("compute",), schedule="interleaved", num_atoms=8)) == ()
    assert plan_all(Problem(layout=layout, rates=rates, schedule="interleaved", causes=("compute",), num_atoms=8))


def test_gathered_moves_slow_cells_into_few_replicas() -> None:
    problem = job(64, 8, 64, 3)
    cells = make_cells(problem.layout, problem.rates, 128)
    slow = slow_cells(cells, cells.grid)
    for size in (1, 2, 4, 8):
        grid = gathered(cells.grid, slow, size) if len(slow) <= size * 8 else cells.grid
        assert sorted(grid.ravel().tolist()) == sorted(cells.grid.ravel().tolist())
    gathered_in = (np.isin(gathered(cells.grid, slow, 8), slow)).any(axis=1).sum()
    assert gathered_in == -(-len(slow) // 8)
    for grid in grids(cells, True):
        assert sorted(c for c in grid.ravel().tolist() if c >= 0) == sorted(cells.grid.ravel().tolist())


def test_detour_keeps_neighbours_off_slow_links() -> None:
    problem = job(64, 8, 64, 5)
    healthy = msgspec.structs.replace(problem.rates, slowdown={}, dead=())
    cells = make_cells(problem.layout, healthy, 128)
    placed, former = detour(cells, healthy, cells.grid)
    assert sorted(placed.ravel().tolist()) == sorted(cells.grid.ravel().tolist())
    assert sorted(former.tolist()) == list(range(8))
    slow = {frozenset((link.a, link.b)) for link in healthy.links}
    for d in range(8):
        for s in range(8):
            for e, t in [((d + 1) % 8, s), (d, s + 1)]:
                if t < 8:
                    assert frozenset((int(placed[d, s]), int(placed[e, t]))) not in slow


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.integers(1, 12), st.sampled_from([0.0, 1e-3, 0.2]), st.sampled_from(["1f1b", "gpipe", "zb_h1"]), st.integers(0, 10_000))
def test_closed_form_less_launches_is_never_above_the_walk(stages: int, counts: int, launch_s: float, schedule: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shop = Shop(Rates(forward_s=float(rng.uniform(0.3, 1.0)), backward_s=float(rng.uniform(0.3, 2.0)), launch_s=launch_s), schedule, 64, stages)
    times = 2 * launch_s + rng.uniform(0.1, 3.0, (stages, 20))
    walked_s = shop.walked_s(times, np.full(20, counts))
    assert (shop.floor_s(times, np.full(20, counts)) <= walked_s * (1 + 1e-12)).all()
    many = np.arange(20) % 12 + 1
    each = [float(shop.walked_s(times[:, i : i + 1], many[i : i + 1])[0]) for i in range(20)]
    assert shop.walked_s(times, many) == pytest.approx(each, rel=1e-12), "one walk for all counts is a walk for each"


@pytest.mark.parametrize("seed", range(6))
def test_cut_ends_where_no_single_step_helps(seed: int) -> None:
    """Steps tried one by one, with nothing left out: moves of a layer and exchanges of two cells, by the walk."""
    rng = np.random.default_rng(seed)
    stages, num_layers, rows = 4, 14, 5
    shop = Shop(Rates(forward_s=1.0, backward_s=2.0, launch_s=1e-3, embed_layers=0.5, head_layers=1.0), "1f1b", num_layers, stages, 0.3)
    layer_s, largest = rng.uniform(2.5, 6.0, stages * rows), rng.choice([0.5, 0.6], stages * rows)
    cells, counts = np.arange(stages * rows).reshape(rows, stages), rng.integers(2, 8, rows)
    found = cut(shop, cells, layer_s, largest, counts)

    def cost(order: Sequence[int], layers: Sequence[int], count: int) -> float:
        times = shop.times(layer_s[list(order)], np.array(layers))
        walked_s = float(shop.walked_s(times[:, None], np.array([count]))[0])
        after_s = 0.3 * float(((np.array(layers) + shop.ends) * largest[list(order)]).max())
        return walked_s + after_s + EVEN * float((times * times).sum() / times.sum()) * count

    for row in range(rows):
        order, layers, count = found.cells[row].tolist(), found.layers[row].tolist(), int(counts[row])
        assert sorted(order) == cells[row].tolist()
        assert sum(layers) == num_layers
        reached = cost(order, layers, count)
        for i, j in itertools.permutations(range(stages), 2):
            moved, other, exchanged = list(layers), list(order), list(layers)
            moved[i], moved[j] = moved[i] - 1, moved[j] + 1
            other[i], other[j], exchanged[i], exchanged[j] = other[j], other[i], exchanged[j], exchanged[i]
            assert min(moved) < 1 or cost(order, moved, count) >= reached * (1 - 2e-9)
            assert cost(other, exchanged, count) >= reached * (1 - 2e-9)


@pytest.mark.parametrize("seed", range(30))
def test_best_group_is_the_best_of_all_splits_of_atoms(seed: int) -> None:
    rng = random.Random(seed)
    speeds = sorted((rng.choice([1.0, 0.8, 0.5, 0.2]) for _ in range(rng.randint(1, 4))), reverse=True)
    rates = Rates(forward_s=1.0, backward_s=2.0, tp_efficiency=(1.0, 0.97, 0.9, 0.85), tp_bytes=rng.choice([0.0, 1.0]), node_bytes_per_s=20.0)
    atoms = rng.randint(len(speeds), 9)

    def every(k: int, left: int) -> list[tuple[int, ...]]:
        return [(left,)] if k == 1 else [(n, *rest) for n in range(1, left - k + 2) for rest in every(k - 1, left - n)]

    def seconds(counts: tuple[int, ...]) -> float:
        k = len(counts)
        pace = max(n / atoms / speed for n, speed in zip(counts, speeds, strict=False)) / rates.efficiency(k)
        return 3.0 * pace + 4 * rates.tp_bytes * (k - 1) / k / 20.0

    choice = best_group(speeds, rates, atoms, 4)
    assert sum(choice.atoms) == atoms
    assert seconds(choice.atoms) == pytest.approx(choice.layer_s)
    assert choice.layer_s == pytest.approx(min(seconds(counts) for k in range(1, len(speeds) + 1) for counts in every(k, atoms)))


def test_partitions_are_all_there_once() -> None:
    found = list(partitions(tuple(range(8)), 4, 2))
    assert len(found) == len(set(found)) == 105
    assert all(sorted(c for part in parts for c in part) == list(range(8)) for parts in found)
    assert len(list(partitions(tuple(range(5)), 2, 2))) == 15
