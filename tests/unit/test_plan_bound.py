"""The planner's bound: no layout of its class is priced below it, and it is not far below the best."""

from __future__ import annotations

import itertools
import random

import msgspec
import numpy as np
import pytest
from bench.joint_small import random_small, true_best
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from lurcher.layout import LayerRange, Layout, Replica, Stage, apportion
from lurcher.model.critical_path import makespans_by_count
from lurcher.model.order import compile_schedule
from lurcher.model.price import price
from lurcher.model.rates import Rates
from lurcher.model.schedule import schedule_text
from lurcher.plan.fill import counted_speed, least_units
from lurcher.plan.least import job_of, least_iteration, least_of
from lurcher.plan.whole import Line, least_walk

ATOMS = 16


def best_by_programming(schedule: str, num_stages: int, num_microbatches: int, backward_part: float) -> float:
    """The least makespan over all ways to cut P units of work over P stages: a linear program of every chunk's start."""
    order = compile_schedule(schedule_text(schedule, num_stages, num_microbatches))
    steps = order.steps
    rows, columns, values, row = [], [], [], 0
    for level in order.levels:
        for k, i in enumerate(range(level.first, level.end)):
            part = backward_part if steps[i].kind == "B" else 1 - backward_part
            for source in {int(level.after[k]), int(level.needs[k])}:  # end of source + own time <= own end
                rows += [row, row]
                columns += [steps[i].stage, num_stages + i]
                values += [part, -1.0]
                if source > 0:
                    rows.append(row)
                    columns.append(num_stages + source - 1)
                    values.append(1.0)
                row += 1
            rows += [row, row]
            columns += [num_stages + i, num_stages + len(steps)]
            values += [1.0, -1.0]
            row += 1
    size = num_stages + len(steps) + 1
    cost, whole = np.zeros(size), np.zeros((1, size))
    cost[-1], whole[0, :num_stages] = 1.0, 1.0
    inequalities = coo_matrix((values, (rows, columns)), shape=(row, size)).tocsr()
    return float(linprog(cost, A_ub=inequalities, b_ub=np.zeros(row), A_eq=whole, b_eq=[num_stages], method="highs").fun)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
@pytest.mark.parametrize("num_microbatches", [1, 2, 4, 5, 8])
def test_fill_is_what_a_linear_program_finds(schedule: str, num_stages: int, num_microbatches: int) -> None:
    best = best_by_programming(schedule, num_stages, num_microbatches, 2 / 3)
    assert least_units(schedule, num_stages, num_microbatches, 2 / 3) == pytest.approx(best, rel=1e-6)


@settings(max_examples=150)
@given(st.integers(1, 6), st.integers(1, 20), st.floats(0.3, 0.9), st.integers(0, 10_000))
def test_lemma_of_the_fill(num_stages: int, num_microbatches: int, part: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    speeds, times = rng.uniform(0.2, 1.0, num_stages), rng.uniform(0.5, 1.5, num_stages)
    work = float(speeds @ times)
    for schedule in ("1f1b", "gpipe"):
        makespan = float(makespans_by_count(schedule, times * (1 - part), times * part, num_microbatches)[num_microbatches])
        counted = np.maximum(speeds, counted_speed(work, makespan)).sum()
        assert (num_microbatches + num_stages - 1) * work <= counted * makespan * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(0, 5), st.integers(1, 9), st.sampled_from([1.0, 1.2, 2.0]), st.sampled_from(["1f1b", "gpipe"]), st.booleans())
def test_whole_layers_against_every_cut(num_stages: int, more: int, counts: int, slow: float, schedule: str, ends: bool) -> None:
    num_layers = num_stages + more
    embed, head, launch = (0.5, 1.0, 0.1) if ends else (0.0, 0.0, 0.0)
    cuts = [np.diff([0, *cut, num_layers]) for cut in itertools.combinations(range(1, num_layers), num_stages - 1)]
    best = float("inf")
    for place in range(num_stages):
        layer_s = np.ones(num_stages)
        layer_s[place] = slow
        extra = np.zeros(num_stages)
        extra[0] += embed
        extra[-1] += head
        work = (np.array(cuts) + extra) * layer_s
        found = makespans_by_count(schedule, launch / 2 + work / 3, launch / 2 + work * 2 / 3, counts)[:, counts]
        best = min(best, float(found.min()))
    line = Line(schedule, num_layers, embed, head, 1.0, launch, (launch / 2 + 2 / 3) / (launch + 1))  # of a stage with one layer
    found_s = least_walk(line, num_stages, counts, 0.1, slow)
    assert 0.85 * best <= found_s <= best * (1 + 1e-9)


def random_rates(rng: random.Random, per_node: int, num_ranks: int) -> Rates:
    return Rates(
        forward_s=rng.uniform(0.5, 2),
        backward_s=rng.uniform(0.5, 3),
        launch_s=rng.choice([0.0, 0.1]),
        embed_layers=rng.choice([0.0, 0.5]),
        head_layers=rng.choice([0.0, 1.0]),
        tp_efficiency=(1.0, 0.97, 0.95, 0.92),
        tp_bytes=rng.choice([0.0, 1.0]),
        hop_s=rng.choice([0.0, 0.05]),
        hop_bytes=rng.choice([0.0, 1.0]),
        sync_bytes_per_layer=rng.choice([0.0, 3.0]),
        optimizer_layer_s=rng.choice([0.0, 0.3]),
        overhead_s=0.1,
        link_bytes_per_s=10.0,
        node_bytes_per_s=50.0,
        ranks_per_node=per_node,
        slowdown={rank: rng.choice([1.0, 1.0, 1.2, 1.5, 3.0]) for rank in range(num_ranks)},
    )


def random_layout(rng: random.Random, present: Layout, rates: Rates, tp: int) -> Layout:
    """Other places, groups, cuts and counts, with the present numbers of replicas and stages."""
    num_replicas, num_stages = len(present.replicas), len(present.replicas[0].stages)
    cells = [tuple(range(i, i + tp)) for i in range(0, len(present.ranks), tp)]
    rng.shuffle(cells)
    marks = sorted(rng.choices(range(present.num_microbatches + 1), k=num_replicas - 1))
    replicas = []
    for d, count in enumerate(np.diff([0, *marks, present.num_microbatches]).tolist()):
        ends = [0, *sorted(rng.sample(range(1, present.num_layers), num_stages - 1)), present.num_layers]
        stages = []
        for s in range(num_stages):
            ranks = tuple(sorted(cells[d * num_stages + s], key=lambda r: rates.slowdown[r])[: rng.randint(1, tp)])
            shares = apportion(ATOMS, [round(60 / rates.slowdown[rank]) for rank in ranks])
            stages.append(Stage(ranks, shares, (LayerRange(ends[s], ends[s + 1]),)))
        replicas.append(Replica(tuple(stages), count))
    used = {rank for replica in replicas for stage in replica.stages for rank in stage.ranks}
    return Layout(present.num_layers, present.num_microbatches, tuple(replicas), tuple(sorted(set(present.ranks) - used)))


@pytest.mark.parametrize("seed", range(60))
def test_no_random_layout_beats_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    per_node = rng.choice([1, 2, 4])
    tp, pp, dp = rng.choice([t for t in (1, 2, 4) if t <= per_node]), rng.choice([1, 2, 3]), rng.choice([1, 2, 3])
    present = Layout.uniform(tp=tp, pp=pp, dp=dp, num_layers=rng.randint(pp, 8), num_microbatches=rng.randint(dp, 12))
    rates = random_rates(rng, per_node, present.world_size)
    for schedule in ("1f1b", "gpipe", "zb_h1"):
        least = least_iteration(present, rates, schedule, ATOMS)
        assert least.routed_s <= least.seconds
        for _ in range(8):
            assert price(random_layout(rng, present, rates, tp), rates, schedule).iteration_s >= least.seconds * (1 - 1e-9)


@pytest.mark.parametrize("seed", [12, 15, 27, 35])
def test_bound_beside_brute_force(seed: int) -> None:
    problem = random_small(random.Random(seed))
    best = true_best(problem)
    job = job_of(problem.layout, problem.rates, problem.schedule, problem.num_atoms)
    assert least_of(job, whole=False).seconds <= least_of(job).seconds <= best * (1 + 1e-9)


def test_healthy_even_job_reaches_its_bound() -> None:
    layout = Layout.uniform(tp=4, pp=4, dp=4, num_layers=16, num_microbatches=32)
    rates = Rates(forward_s=1.0, backward_s=2.0, tp_efficiency=(1.0, 0.98, 0.97, 0.96), ranks_per_node=4)
    assert least_iteration(layout, rates, "1f1b", 16).seconds == pytest.approx(price(layout, rates).iteration_s, rel=1e-3)


def test_a_short_launch_hardly_lowers_the_bound() -> None:
    """Launches make both passes more alike, by what they take of them; 8 stages and as many micro-batches live by the longer pass."""
    layout = Layout.uniform(tp=1, pp=8, dp=2, num_layers=64, num_microbatches=16)
    rates = Rates(forward_s=1.0, backward_s=2.0, ranks_per_node=1)
    bounds = [least_iteration(layout, msgspec.structs.replace(rates, launch_s=launch_s), "1f1b", 1).seconds for launch_s in (0.0, 1e-3, 0.1)]
    assert bounds[0] <= bounds[1] <= bounds[2]
    assert bounds[1] == pytest.approx(bounds[0], rel=2e-3)
    assert price(layout, rates).iteration_s <= 1.03 * bounds[0]


def test_bound_rises_with_every_fault() -> None:
    layout = Layout.uniform(tp=2, pp=2, dp=2, num_layers=8, num_microbatches=16)
    rates = Rates(forward_s=1.0, backward_s=2.0, ranks_per_node=2)
    least = [
        least_iteration(layout, Rates(forward_s=1.0, backward_s=2.0, ranks_per_node=2, slowdown=dict.fromkeys(range(count), 2.0)), "1f1b", 32).seconds
        for count in range(5)
    ]
    assert least == sorted(least) and least[0] == pytest.approx(price(layout, rates).iteration_s, rel=1e-3) and least[-1] > least[0]
