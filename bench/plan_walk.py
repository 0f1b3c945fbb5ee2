"""How fast the walk and the price are, and how well an iteration is predicted. Prints tables; `--json FILE` writes them, `--quick` does less."""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from lurcher.layout import LayerRange, Layout, Replica, Route, Stage
from lurcher.model.cost import CostModel
from lurcher.model.critical_path import makespans, makespans_by_count
from lurcher.model.order import Order, compile_schedule
from lurcher.model.price import price, price_many, replica_tables
from lurcher.model.rates import LinkRate, Rates
from lurcher.model.schedule import SPLIT_BACKWARD, schedule_text
from lurcher.records import CHUNK, WORKLOAD, Op
from tables import Row, show

Floats = NDArray[np.float64]
PHASE = {"F": Op.FORWARD, "B": Op.BACKWARD, "W": Op.WEIGHT}


def timed_ms(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Fastest and median of a few runs, in milliseconds: without the machine's other business, and with it."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        found.append((time.perf_counter() - start) * 1e3)
    return min(found), float(np.median(found))


def compiled_of(name: str, num_stages: int, num_microbatches: int, num_chunks: int) -> Order:
    return compile_schedule(schedule_text(name, num_stages, num_microbatches, num_chunks))


def walk_speed(repeats: int) -> list[Row]:
    """Every lane and micro-batch with durations of its own; `compile` is once per text."""
    rows: list[Row] = []
    rng = np.random.default_rng(0)
    for name, chunks in (("1f1b", 1), ("zb_h1", 1), ("gpipe", 1), ("interleaved", 2)):
        for num_stages, m, lanes in ((16, 128, 64), (8, 64, 1000)):
            forward, backward, weight = rng.uniform(1, 2, (3, lanes, num_stages * chunks, m))
            hops = rng.uniform(0, 0.1, (lanes, num_stages * chunks - 1))
            weights = weight if name in SPLIT_BACKWARD else None
            order = compiled_of(name, num_stages, m, chunks)
            compiled, _ = timed_ms(partial(compiled_of, name, num_stages, m, chunks), repeats)
            best, median = timed_ms(partial(makespans, order, forward, backward, hops, weights), repeats)
            rows.append(
                {
                    "schedule": name,
                    "stages": num_stages,
                    "micro-batches": m,
                    "lanes": lanes,
                    "compile ms": compiled,
                    "walk ms": best,
                    "median": median,
                    "us a lane": best * 1e3 / lanes,
                }
            )
    return rows


def price_speed(repeats: int) -> list[Row]:
    """What the planner asks for, layouts made beforehand: communication, memory and 2 % slow ranks in the rates."""
    rng = np.random.default_rng(1)

    def rates(num_ranks: int) -> Rates:
        slow = rng.choice(num_ranks, max(num_ranks // 50, 1), replace=False)
        links = tuple(LinkRate(int(r) // 8, -1, 3.0) for r in slow[: len(slow) // 4])
        return Rates(
            forward_s=1e-3, backward_s=2e-3, hop_bytes=1e7, sync_bytes_per_layer=4e8, tp_bytes=1e7, optimizer_layer_s=1e-4,
            link_bytes_per_s=25e9, node_bytes_per_s=2e11, device_bytes=8e10, layer_bytes=4e9, activation_bytes=1e8,
            slowdown={int(r): float(rng.uniform(1.2, 2)) for r in slow}, links=links,
        )  # fmt: skip

    def job(dp: int, tp: int = 8, pp: int = 8, m: int = 64) -> Layout:
        return Layout.uniform(tp=tp, pp=pp, dp=dp, num_layers=8 * pp, num_microbatches=m * dp)

    def routed(layout: Layout, number: int) -> Layout:
        away = range(0, layout.split[0], 2 + number % 5)
        routes = tuple(Route(m, LayerRange(8, 16), 1 + m % (len(layout.replicas) - 1), 1) for m in away)
        return Layout(layout.num_layers, layout.num_microbatches, layout.replicas, (), routes)

    def recut(number: int) -> Layout:
        values = np.random.default_rng(number)
        cuts = [0, *sorted(values.choice(np.arange(1, 64), 7, replace=False).tolist()), 64]
        stages = tuple(Stage((s,), (1,), (LayerRange(*pair),)) for s, pair in enumerate(itertools.pairwise(cuts)))
        return Layout(64, 64, (Replica(stages, 64),))

    small, wide, large = job(4, tp=1), job(64, pp=16, m=128), job(1562)
    splits = [small.with_split((64 - k % 20, 64 + k % 20, 64 - k % 13, 64 + k % 13)) for k in range(1000)]
    cases: list[tuple[str, Callable[[], object]]] = [
        ("1,000 splits of PP8 M64 DP4", partial(price_many, splits, rates(32))),
        ("1,000 ways to cut the layers, PP8 M64", partial(price_many, [recut(number) for number in range(1000)], rates(8))),
        ("one, PP16 M128 DP64 TP8", partial(price, wide, rates(8192))),
        ("one, 12,496 nodes: PP8 M64 DP1562 TP8", partial(price, large, rates(99968))),
        ("its T(m), m to 128", partial(replica_tables, large, rates(99968), 128)),
        ("20 routed, PP8 M64 DP4", partial(price_many, [routed(small, number) for number in range(20)], rates(32))),
    ]
    rows: list[Row] = []
    for name, work in cases:
        best, median = timed_ms(work, max(repeats // 2, 1))
        rows.append({"priced": name, "ms": best, "median": median})
    tables = np.random.default_rng(2).uniform(1, 2, (64, 8))
    best, median = timed_ms(lambda: makespans_by_count("zb_h1", tables, tables, 128, weight_s=tables), repeats)
    rows.append({"priced": "ZB-H1: T(m) of 64 replicas of PP8, m to 128", "ms": best, "median": median})
    return rows


class Job:
    """A job whose chunks follow another formula than the predictor's, with noise on every one, and whose pipeline is run by a plain loop."""

    def __init__(self, schedule: str, layout: Layout, tokens: int, noise: float, seed: int) -> None:
        self.schedule, self.layout, self.tokens, self.noise = schedule, layout, tokens, noise
        self.rng = np.random.default_rng(seed)
        self.device = self.rng.uniform(0.97, 1.03, layout.world_size)

    def workload(self) -> NDArray[np.void]:
        """Packed documents: the tokens are the same in every micro-batch or nearly, the attention's work is not."""
        rows = np.zeros(self.layout.num_microbatches, WORKLOAD)
        rows["microbatch"] = np.arange(len(rows))
        for row in rows:
            left = self.tokens - int(self.rng.integers(0, self.tokens // 4))
            row["num_tokens"] = left
            while left:
                length = min(int(self.rng.lognormal(np.log(self.tokens / 12), 1.1)) + 1, left)
                row["sum_len_sq"] += length**2
                left -= length
        return rows

    def run(self) -> tuple[NDArray[np.void], NDArray[np.void], float]:
        """Workload, chunks and seconds of the next iteration."""
        work, chunks, longest_s = self.workload(), [], 0.0
        for d, replica in enumerate(self.layout.replicas):
            texts = [text.split() for text in schedule_text(self.schedule, len(replica.stages), replica.microbatches)]
            first = self.layout.microbatches_of(d).start
            durations = {}
            for s, stage in enumerate(replica.stages):
                for word in texts[s]:
                    busy = [self.busy_s(stage.num_layers / stage.tp_size, word[0], work[first + int(word[1:])], rank) for rank in stage.ranks]
                    durations[s, word] = max(busy) + 4e-4
                    chunks += [
                        (r, first + int(word[1:]), PHASE[word[0]], b, max(busy) - b, 4e-4, 0.0) for r, b in zip(stage.ranks, busy, strict=True)
                    ]
            longest_s = max(longest_s, run_pipeline(texts, durations))
        return work, np.array(chunks, CHUNK), longest_s * 1.02 + 0.03 * float(self.rng.lognormal(0, 0.1))

    def busy_s(self, layers: float, kind: str, work: np.void, rank: int) -> float:
        """One rank's own work in a chunk."""
        merged = {"F": 1.0, "B": 2.1}
        effort = (merged if self.schedule not in SPLIT_BACKWARD else {"F": 1.0, "B": 1.15, "W": 0.95})[kind]
        attention = 0.0 if kind == "W" else 4e-10 * float(work["sum_len_sq"]) ** 0.98  # the weight gradient has no attention in it
        layer_s = 6e-7 * float(work["num_tokens"]) ** 1.02 + attention
        return float((2e-4 + layers * effort * layer_s) * self.device[rank] * self.rng.lognormal(0, self.noise))


def run_pipeline(texts: list[list[str]], durations: Mapping[tuple[int, str], float]) -> float:
    """Makespan by sweeping over the stages until every action has run: shares nothing with the walk."""
    todo, free, ends = [list(words) for words in texts], [0.0] * len(texts), {}
    while any(todo):
        for s, words in enumerate(todo):
            while words:
                word = words[0]
                source = {"F": (s - 1, word), "B": (s + 1, word), "W": (-1, "")}[word[0]]
                if 0 <= source[0] < len(texts) and source not in ends:
                    break
                free[s] = ends[s, words.pop(0)] = max(free[s], ends.get(source, 0.0)) + durations[s, word]
    return max(free)


def prediction(num_iterations: int) -> list[Row]:
    """Fitted on 40 healthy iterations, then each next one predicted from its workload alone. Noise is 3 % on every chunk."""
    published = {("1f1b", 8192): "2.81 %", ("zb_h1", 16384): "5.06 %", ("1f1b", 32768): "4.89 %"}
    rows: list[Row] = []
    for schedule in ("1f1b", "zb_h1"):
        for tokens, (tp, pp, dp, m) in ((8192, (2, 2, 2, 4)), (16384, (2, 4, 2, 8)), (32768, (2, 4, 2, 8)), (16384, (1, 8, 2, 16))):
            job = Job(schedule, Layout.uniform(tp=tp, pp=pp, dp=dp, num_layers=32, num_microbatches=m * dp), tokens, 0.03, seed=tokens + pp)
            model = CostModel(schedule)
            for _ in range(40):
                model.observe(job.layout, *job.run())
            errors, lengths = [], []
            for _ in range(num_iterations):
                work, _, duration_s = job.run()
                errors.append(model.expected_s(job.layout, work) / duration_s - 1)
                lengths.append(duration_s)
            rows.append(
                {
                    "schedule": schedule,
                    "tokens": tokens,
                    "layout": f"TP{tp} PP{pp} DP{dp} m{m}",
                    "mean |error|": float(np.mean(np.abs(errors))),
                    "mean error": float(np.mean(errors)),
                    "worst": float(np.max(np.abs(errors))),
                    "iterations scatter": float(np.std(lengths) / np.mean(lengths)),
                    "ResiHP table 4": published.get((schedule, tokens), "") if pp < 8 else "",
                }
            )
    return rows


def main() -> None:
    """Run all three and show them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer repeats and iterations")
    parser.add_argument("--json", type=Path, help="write the tables to this file")
    args = parser.parse_args()
    repeats = 3 if args.quick else 11
    result = {"walk": walk_speed(repeats), "price": price_speed(repeats), "prediction": prediction(20 if args.quick else 100)}
    console = Console()
    for title, rows in result.items():
        show(console, title, rows)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
