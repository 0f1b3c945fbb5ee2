"""How fast a split and a walk are, and what the papers' cost formulas lose against the walk. Prints tables; `--json FILE` writes them."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console

from lurcher.model.critical_path import compile_schedule, finish_times, makespans_by_count
from lurcher.model.schedule import schedule_text
from lurcher.plan.split import min_max_split, proportional_costs
from tables import Row, show


def best_ms(work: Callable[[], object], repeats: int = 7) -> float:
    """Fastest of a few runs, in milliseconds: what the work costs without the machine's other business."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found) * 1e3


def split_speed() -> list[Row]:
    """Seven in eight replicas are healthy, the others 1.5 times slower; tables reach to twice the even split."""
    rows: list[Row] = []
    rng = np.random.default_rng(0)
    for num_replicas, num_microbatches in ((4, 64), (8, 128), (64, 512), (512, 4096), (512, 65536), (4096, 65536)):
        unit_s = np.where(np.arange(num_replicas) % 8 == 0, 1.5, 1.0) * rng.uniform(0.98, 1.02, num_replicas)
        cap = 2 * num_microbatches // num_replicas
        times = [proportional_costs(float(t), cap) for t in unit_s]
        split = min_max_split(times, num_microbatches)
        longest = max(float(table[m]) for table, m in zip(times, split, strict=True))
        fractional = num_microbatches / float((1 / unit_s).sum())
        rows.append(
            {
                "replicas": num_replicas,
                "micro-batches": num_microbatches,
                "ms": best_ms(lambda times=times, m=num_microbatches: min_max_split(times, m), 5),  # type: ignore[misc]
                "over the fractional bound": longest / fractional,
            }
        )
    return rows


def walk_speed() -> list[Row]:
    """One job's walk with all replicas as lanes, and T(m) for all m of one replica."""
    rows: list[Row] = []
    rng = np.random.default_rng(0)
    for num_stages, m, lanes in ((4, 16, 1), (8, 64, 1), (16, 128, 1), (16, 128, 64)):
        texts = schedule_text("1f1b", num_stages, m)
        order = compile_schedule(texts)
        times = rng.uniform(1, 2, (lanes, num_stages, m))
        rows.append(
            {
                "stages": num_stages,
                "micro-batches": m,
                "replicas": lanes,
                "compile ms": best_ms(lambda texts=texts: compile_schedule(texts), 3),  # type: ignore[misc]
                "walk ms": best_ms(lambda order=order, times=times: finish_times(order, times, 2 * times)),  # type: ignore[misc]
                "T(m) for all m, ms": best_ms(lambda p=num_stages, m=m: makespans_by_count("1f1b", np.ones(p), np.ones(p), m), 3),  # type: ignore[misc]
            }
        )
    return rows


def formula_against_walk(num_cases: int = 300) -> list[Row]:
    """Splits chosen by the papers' costs, scored by the walk, relative to the split chosen by the walk. One slow stage per job or two."""
    rng = np.random.default_rng(1)
    lost: dict[str, list[float]] = {"m t": [], "(m + P - 1) t": []}
    too_high: list[float] = []
    for _ in range(num_cases):
        num_stages, num_replicas = int(rng.choice([4, 8])), int(rng.choice([2, 4]))
        num_microbatches = num_replicas * int(rng.choice([8, 16]))
        stages = np.ones((num_replicas, num_stages))
        for _ in range(int(rng.integers(1, 3))):
            stages[rng.integers(num_replicas), rng.integers(num_stages)] = rng.uniform(1.2, 3.0)
        walked = [makespans_by_count("1f1b", f, 2 * f, num_microbatches) for f in stages]

        def longest(split: tuple[int, ...], walked: list[np.ndarray] = walked) -> float:
            return max(float(table[m]) for table, m in zip(walked, split, strict=True))

        best = longest(min_max_split(walked, num_microbatches))
        for name, fill in (("m t", 0), ("(m + P - 1) t", num_stages - 1)):
            times = [proportional_costs(3 * float(f.max()), num_microbatches, fill) for f in stages]
            lost[name].append(longest(min_max_split(times, num_microbatches)) / best - 1)
        slowest = int(stages.max(axis=1).argmax())
        even = num_microbatches // num_replicas
        too_high.append((even + num_stages - 1) * 3 * float(stages[slowest].max()) / float(walked[slowest][even]) - 1)
    rows: list[Row] = []
    for name, losses in lost.items():
        worse = float(np.mean(np.array(losses) > 1e-9))
        rows.append({"cost": name, "cases": num_cases, "worse": worse, "mean loss": float(np.mean(losses)), "worst loss": max(losses)})
    rows[1]["time too high, mean"] = float(np.mean(too_high))
    rows[1]["time too high, worst"] = max(too_high)
    return rows


def split_beside_solver() -> list[Row]:
    """The split as GREYHOUND solves it, with cvxpy: whole m_i, sum m_i = M, min max m_i t_i; beside the exact one, same instances.

    ECOS_BB is the released artifact's solver; from 16 groups on it takes minutes, so HiGHS stands beside it. One group is 1.5
    times slower, times scatter by 2 %, 8 micro-batches a group. Needs the extra `bench`.
    """
    try:
        import cvxpy as cp
    except ImportError:
        return [{"solver": "cvxpy is not installed: pip install 'lurcher[bench]'"}]
    rows: list[Row] = []
    for solver, num_groups in (("ECOS_BB", 4), ("ECOS_BB", 8), ("ECOS_BB", 12), ("HIGHS", 4), ("HIGHS", 8), ("HIGHS", 64), ("HIGHS", 256)):
        if solver not in cp.installed_solvers():
            rows.append({"solver": f"{solver} is not installed"})
            continue
        rng = np.random.default_rng(num_groups)
        unit_s = np.where(np.arange(num_groups) == 0, 1.5, 1.0) * rng.uniform(0.98, 1.02, num_groups)
        num_microbatches = 8 * num_groups
        counts = cp.Variable(num_groups, integer=True)
        problem = cp.Problem(cp.Minimize(cp.max(cp.multiply(counts, unit_s))), [counts >= 1, cp.sum(counts) == num_microbatches])
        start = time.perf_counter()
        problem.solve(solver=solver)
        solver_ms = (time.perf_counter() - start) * 1e3
        times = [proportional_costs(float(t), 32) for t in unit_s]  # four times the even share
        split = min_max_split(times, num_microbatches)
        ours_ms = best_ms(lambda times=times, m=num_microbatches: min_max_split(times, m), 5)  # type: ignore[misc]
        longest = max(float(table[m]) for table, m in zip(times, split, strict=True))
        rows.append(
            {
                "solver": solver,
                "groups": num_groups,
                "solver ms": solver_ms,
                "ours ms": ours_ms,
                "times faster": solver_ms / ours_ms,
                "solver's / our longest": float(problem.value) / longest,
            }
        )
    return rows


def main() -> None:
    """Run all and show them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="write the tables to this file")
    args = parser.parse_args()
    result = {"split": split_speed(), "split beside cvxpy": split_beside_solver(), "walk": walk_speed(), "formula": formula_against_walk()}
    console = Console()
    for title, rows in result.items():
        show(console, title, rows)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
