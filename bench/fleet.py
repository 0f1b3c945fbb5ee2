"""Ranks: who is named, how soon, who else is, and how sure the names are. Prints tables; `--json FILE` writes them.

Drives what `lurcher analyze` calls for rows of several ranks, from the table of rows on: a job of 10,000 ranks and 10,000 iterations is 1e8 values,
made in memory by seed. Constants were chosen on seed TUNING, tables come from seed REPORTING. `--quick` is for seeing that it runs.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

from detect import Row, show
from fleet_jobs import REPORTING, TUNING, Drawn, Floats, Slow, draw, fleet, generator, table_of
from fleet_length import length_rows
from fleet_live import live_row
from lurcher.analyze.ranks import rank_events
from lurcher.analyze.values import Suspect, VerdictEvent

SURE = 0.9
BINS = ((0.0, 0.7), (0.7, 0.8), (0.8, SURE), (SURE, 1.01))


class Sizes(NamedTuple):
    """Ranks and iterations of the large job and its seeds; iterations and seeds of the table of delays; jobs of the calibration and of variable length."""

    ranks: int
    rows: int
    seeds: int
    short_rows: int
    short_seeds: int
    jobs: int
    length_jobs: int


QUICK = Sizes(1_000, 1_000, 1, 400, 2, 60, 3)
FULL = Sizes(10_000, 10_000, 2, 600, 10, 1_500, 60)


class Case(NamedTuple):
    """A job: own noise of each rank, and slow ranks as (how many, factor, from the start or from a random iteration)."""

    title: str
    sigma: float
    num_slow: int
    factor: float
    at_start: bool = False
    phi: float = 0.0
    spikes: float = 0.0


LARGE = (
    Case("healthy, 1 %", 0.01, 0, 1.0),
    Case("healthy, 2 %", 0.02, 0, 1.0),
    Case("healthy, 2 %, 1 % spikes", 0.02, 0, 1.0, spikes=0.01),
    Case("one 10 % slow", 0.02, 1, 1.10),
    Case("two 20 % slow", 0.02, 2, 1.20),
    Case("one 20 % slow from the start", 0.02, 1, 1.20, at_start=True),
)
SHORT = (
    Case("10 %, 1 %", 0.01, 10, 1.10),
    Case("10 %, 2 %", 0.02, 10, 1.10),
    Case("10 %, 3 %", 0.03, 10, 1.10),
    Case("10 %, 2 %, 1 % spikes", 0.02, 10, 1.10, spikes=0.01),
    Case("10 %, 1 %, AR(1) 0.7", 0.01, 10, 1.10, phi=0.7),
    Case("10 %, 2 %, AR(1) 0.7", 0.02, 10, 1.10, phi=0.7),
    Case("20 %, 3 %", 0.03, 10, 1.20),
    Case("50 %, 3 %", 0.03, 10, 1.50),
    Case("20 % from the start, 2 %", 0.02, 3, 1.20, at_start=True),
    Case("30 % from the start, 2 %", 0.02, 3, 1.30, at_start=True),
)
"""Of so many ranks ten are slow, each from its own iteration: as many delays as of ten jobs with one."""


class Bench:
    """One run: sizes, seed, and where progress is shown."""

    def __init__(self, sizes: Sizes, seed: int, console: Console) -> None:
        self.sizes, self.seed, self.console = sizes, seed, console

    def large(self) -> list[Row]:
        """The large job."""
        return [self._row(case, number, self.sizes.rows, self.sizes.seeds) for number, case in enumerate(LARGE)]

    def delays(self) -> list[Row]:
        """As many ranks over fewer iterations, more seeds."""
        return [self._row(case, 100 + number, self.sizes.short_rows, self.sizes.short_seeds) for number, case in enumerate(SHORT)]

    def _row(self, case: Case, number: int, num_rows: int, num_seeds: int) -> Row:
        delays: list[int] = []
        missed = strangers = 0
        seconds = above = 0.0
        for seed in track(range(num_seeds), case.title, console=self.console, transient=True):
            rng = generator(self.seed, number, seed)
            values = fleet(rng, num_rows, self.sizes.ranks, case.sigma, phi=case.phi, spikes=case.spikes)
            slow = _slow(rng, case, values)
            table, job_s = table_of({"busy_s": values})
            before = _peak_gib()
            begin = time.monotonic()
            events = rank_events(table, job_s)
            seconds += time.monotonic() - begin
            above = max(above, _peak_gib() - before)
            truth = {s.ranks[0]: s.begin for s in slow}
            named = {e.suspects[0].component.ranks: e for e in events}
            strangers += sum(set(ranks) - truth.keys() != set() for ranks in named)
            missed += sum((rank,) not in named for rank in truth)
            delays += [named[(rank,)].detected_iteration - onset for rank, onset in truth.items() if (rank,) in named]
        return {
            "job": case.title,
            "ranks x iterations": f"{self.sizes.ranks} x {num_rows}",
            "jobs": num_seeds,
            "slow": case.num_slow * num_seeds,
            "missed": missed,
            "others named": strangers,
            "median delay": float(np.median(delays)) if delays else "",
            "p90 delay": float(np.quantile(delays, 0.9)) if delays else "",
            "worst delay": max(delays) if delays else "",
            "s a job": seconds / num_seeds,
            "GiB above the input": above,
        }

    def sure(self) -> list[Row]:
        """How often names are right, by the confidence they were given."""
        judged: list[tuple[float, bool, str]] = []
        real = found = 0
        for number in track(range(self.sizes.jobs), "confidence", console=self.console, transient=True):
            job = draw(generator(self.seed, 900, number))
            table, job_s = table_of(job.columns)
            events = rank_events(table, job_s)
            judged += [(suspect.confidence, right(suspect, event, job), job.trap) for event in events for suspect in event.suspects]
            lasting = [slow for slow in job.slow if slow.end - slow.begin >= 30 and slow.factor >= 1.10 and slow.costs(job.columns) >= 0.03]
            real += len(lasting)
            found += sum(any(_is_of(s, event, slow) for event in events for s in event.suspects) for slow in lasting)
        rows: list[Row] = []
        for low, high in BINS:
            inside = [ok for confidence, ok, _ in judged if low <= confidence < high]
            wrong = [trap for confidence, ok, trap in judged if low <= confidence < high and not ok]
            rows.append(
                {"confidence": f"{low:.1f} to {min(high, 1.0):.1f}", "suspects": len(inside), "right": float(np.mean(inside)) if inside else ""}
            )
            rows[-1]["wrong, by trap"] = ", ".join(f"{wrong.count(trap)} {trap}" for trap in sorted(set(wrong)))
        rows.append(
            {"confidence": "found of faults of 10 % that cost 3 % and last 30 iterations", "suspects": real, "right": found / real if real else ""}
        )
        return rows


def _slow(rng: np.random.Generator, case: Case, values: Floats) -> list[Slow]:
    num_rows, num_ranks = values.shape
    slow = []
    for rank in rng.choice(num_ranks, case.num_slow, replace=False).tolist():
        begin = 0 if case.at_start else int(rng.integers(30, num_rows - 50))
        values[begin:, rank] *= case.factor
        slow.append(Slow((rank,), case.factor, begin, num_rows))
    return slow


def right(suspect: Suspect, event: VerdictEvent, job: Drawn) -> bool:
    """Whether what is named was truly slow at that time, by that cause."""
    return any(_is_of(suspect, event, slow) for slow in job.slow)


def _is_of(suspect: Suspect, event: VerdictEvent, slow: Slow) -> bool:
    causes = {"busy_s": "compute", "input_s": "input", "host_s": "host", "transfer_s": "communication"}
    end = slow.end if event.end_iteration is None else event.end_iteration + 1
    shared = min(end, slow.end) - max(event.onset_iteration, slow.begin)
    return (
        suspect.component.ranks == slow.ranks
        and suspect.cause == causes[slow.column]
        and 2 * shared > slow.end - max(event.onset_iteration, slow.begin)
    )


def _peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    """Run all tables and show them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small jobs, few seeds")
    parser.add_argument("--json", type=Path, help="write the tables to this file")
    parser.add_argument("--seeds", choices=["reporting", "tuning"], default="reporting", help="tuning: the jobs that constants were chosen on")
    parser.add_argument("--only", action="append", choices=["large", "delays", "length", "sure", "live"], help="this table only; may be repeated")
    args = parser.parse_args()
    seed = TUNING if args.seeds == "tuning" else REPORTING
    bench = Bench(QUICK if args.quick else FULL, seed, Console(stderr=True))
    console = Console()
    result: dict[str, object] = {"seed": seed, "sizes": bench.sizes._asdict()}
    for name, title, run in (
        ("large", "A large job", bench.large),
        ("delays", "Delays in iterations", bench.delays),
        ("length", "A slowdown of 10 % on data of variable length", lambda: length_rows(seed, bench.sizes.length_jobs)),
        ("sure", "Suspects of `lurcher analyze` by confidence", bench.sure),
        ("live", "Suspects of a live job by confidence", lambda: live_row(seed, bench.sizes.jobs)),
    ):
        if args.only and name not in args.only:
            continue
        rows = run()
        show(console, title, rows)
        result[title] = rows
        if args.json:
            args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
