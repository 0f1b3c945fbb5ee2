"""The joint planner: distance from the bound on random faults, from brute force on small jobs, and how long it takes.

    python bench/joint.py                some minutes
    python bench/joint.py --quick        a few of each
    python bench/joint.py --json FILE    also write the rows

Jobs: nodes of 8 ranks, TP8, layers as Llama 3 405B has them (embedding and head count as a layer each), gradients, activations,
optimizer and memory in the price. Of all ranks, up to 2 % are dead (3 in 10) or run at 0.4 to 0.9 of their speed; up to 2 % of
the nodes have a slow link to a neighbour in the present layout.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console

from joint_small import random_small, true_best
from lurcher.layout import LayerRange, Layout, Replica, Stage
from lurcher.model.price import price
from lurcher.model.rates import LinkRate, Rates
from lurcher.plan.joint import plan_all
from lurcher.plan.problem import Problem
from tables import Row, show

CELLS = (
    (64, 4, 8),
    (64, 8, 64),
    (256, 4, 8),
    (256, 8, 64),
    (1024, 4, 8),
    (1024, 8, 64),
    (64, 8, 8),
    (256, 8, 8),
    (1024, 8, 8),
    (64, 4, 64),
    (1024, 4, 64),
)
"""Nodes, stages of a replica, micro-batches of a replica. Where the last two are equal, half of the time is fill and drain."""


def healthy_job(num_nodes: int, num_stages: int, per_replica: int) -> tuple[Layout, Rates]:
    """A job whose stages are even: 8 layers each, one fewer where the embedding or the head is."""
    num_replicas = num_nodes // num_stages
    sizes = [8] * num_stages
    sizes[0] -= 1
    sizes[-1] -= 1
    ends = np.cumsum([0, *sizes]).tolist()
    replicas = []
    for d in range(num_replicas):
        stages = []
        for s in range(num_stages):
            node = d * num_stages + s
            stages.append(Stage(tuple(range(8 * node, 8 * node + 8)), (1,) * 8, (LayerRange(ends[s], ends[s + 1]),)))
        replicas.append(Replica(tuple(stages), per_replica))
    rates = Rates(
        forward_s=0.08,
        backward_s=0.16,
        launch_s=2e-5,
        embed_layers=1.0,
        head_layers=1.0,
        tp_efficiency=(1.0, 0.98, 0.97, 0.96, 0.95, 0.94, 0.93, 0.92),
        hop_s=2e-5,
        hop_bytes=16e6,
        sync_bytes_per_layer=3.2e9,
        optimizer_layer_s=0.02,
        overhead_s=0.05,
        link_bytes_per_s=50e9,
        node_bytes_per_s=450e9,
        device_bytes=80e9,
        layer_bytes=14.4e9,
        activation_bytes=2e9,
        staging_bytes=2e9,
    )
    return Layout(ends[-1], num_replicas * per_replica, tuple(replicas)), rates


def faulty_job(num_nodes: int, num_stages: int, per_replica: int, seed: int, *, least: int = 1) -> Problem:
    """The job with between `least` faults and 2 % of all ranks, and of the links that it uses between nodes."""
    rng = random.Random(seed)
    layout, rates = healthy_job(num_nodes, num_stages, per_replica)
    num_ranks = 8 * num_nodes
    hit = rng.sample(range(num_ranks), rng.randint(least, max(least, num_ranks // 50)))
    dead = tuple(sorted(rank for rank in hit if rng.random() < 0.3))
    slowdown = {rank: 1 / rng.uniform(0.4, 0.9) for rank in hit if rank not in dead}
    num_replicas = num_nodes // num_stages
    links = []
    for node in rng.sample(range(num_nodes), rng.randint(1, max(1, num_nodes // 50))):
        d, s = divmod(node, num_stages)
        ring = ((d + 1) % num_replicas) * num_stages + s
        other = ring if rng.random() < 0.5 or s == num_stages - 1 else node + 1
        links.append(LinkRate(node, other, rng.uniform(2, 10)))
    rates = msgspec.structs.replace(rates, dead=dead, slowdown=slowdown, links=tuple(links))
    return Problem(layout=layout, rates=rates, causes=("compute", "communication"), num_atoms=128)


def gaps(cells: tuple[tuple[int, int, int], ...], draws: int) -> list[Row]:
    """Distance of the best plan from the bound; `healthy` is the distance of the layout without faults from its own bound."""
    rows: list[Row] = []
    for num_nodes, num_stages, per_replica in cells:
        found, took_s = [], []
        for seed in range(draws):
            problem = faulty_job(num_nodes, num_stages, per_replica, seed)
            start = time.perf_counter()
            best = min(plan_all(problem), key=lambda plan: plan.predicted_s)
            took_s.append(time.perf_counter() - start)
            found.append(best.gap)
        rows.append(
            {
                "nodes": num_nodes,
                "stages": num_stages,
                "M/D": per_replica,
                "draws": draws,
                "mean gap %": 100 * float(np.mean(found)),
                "worst gap %": 100 * max(found),
                "median s": float(np.median(took_s)),
                "worst s": max(took_s),
            }
        )
    return rows


def large(num_nodes: int = 12_500, num_stages: int = 10, per_replica: int = 64) -> list[Row]:
    """One job of 100,000 ranks, 2 % of which are slow or dead."""
    problem = faulty_job(num_nodes, num_stages, per_replica, 1, least=8 * num_nodes // 50)
    start = time.perf_counter()
    best = min(plan_all(problem), key=lambda plan: plan.predicted_s)
    took_s = time.perf_counter() - start
    ill = len(problem.rates.slowdown) + len(problem.rates.dead)
    healthy_s = price(*healthy_job(num_nodes, num_stages, per_replica)).iteration_s
    return [{"nodes": num_nodes, "slow or dead ranks": ill, "s": took_s, "gap %": 100 * best.gap, "over healthy": best.predicted_s / healthy_s}]


def small(draws: int) -> list[Row]:
    """Jobs of four nodes of two ranks, against every order, group, cut and split."""
    ratios, bounds = [], []
    for seed in range(draws):
        problem = random_small(random.Random(seed))
        best_s = true_best(problem)
        plans = [plan for plan in plan_all(problem) if not plan.layout.routes]
        best = min(plans, key=lambda plan: plan.predicted_s)
        ratios.append(best.predicted_s / best_s)
        bounds.append(best.bound_s / best_s)
    within = float(np.mean(np.array(ratios) <= 1.02))
    return [
        {"jobs": draws, "plan / best, mean": float(np.mean(ratios)), "worst": max(ratios), "within 2 %": within, "bound / best, highest": max(bounds)}
    ]


def main() -> None:
    """Run all and show them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two draws of the smaller jobs")
    parser.add_argument("--json", type=Path, help="write the tables to this file")
    args = parser.parse_args()
    cells = CELLS[:4] if args.quick else CELLS
    parts: dict[str, Callable[[], list[Row]]] = {
        "gap": lambda: gaps(cells, 2 if args.quick else 10),
        "large": lambda: [] if args.quick else large(),
        "small": lambda: small(3 if args.quick else 15),
    }
    console, result = Console(), {}
    for title, part in parts.items():
        result[title] = part()
        if result[title]:
            show(console, title, result[title])
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
