"""Kill and hang ranks of small jobs at random moments: does every job go on as it must, and is the training still the same?

    python bench/chaos.py                  20 seeds (about two minutes)
    python bench/chaos.py --seeds 100
    python bench/chaos.py --json FILE      also write the rows

What must happen is worked out apart from the code under test: a job goes on if and only if the ranks that are left hold every atom between them.
Every iteration's loss and gradient norm are held against a run without faults, and owners compare their digests after each iteration.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from lurcher.config import JobConfig, JobSection, LayoutSection, ModelSection, PaceSection, RunSection
from lurcher.control.death import UNMEASURED, plan_without
from lurcher.errors import JobDied
from lurcher.layout import Layout
from lurcher.records import BenchResult, Place
from lurcher.runtime.messages import Border
from lurcher.runtime.reports import StepReport
from lurcher.runtime.shapes import held_tensors
from lurcher.runtime.supervisor import Supervisor

ITERATIONS = 8
SHAPES = ((2, 2, 2), (1, 2, 2), (2, 1, 2), (1, 1, 4), (1, 4, 2))
TOLERANCE = 1e-9
HANG_DEADLINE_S = 2.0


class Strike(NamedTuple):
    """`rank` gets `what` (a signal) `delay_s` after `iteration` was sealed; -1: after the start."""

    rank: int
    iteration: int
    delay_s: float
    what: signal.Signals


class Chaos:
    """A director that lets strikes fall, plans without the lost, and keeps what it is told."""

    def __init__(self, config: JobConfig, strikes: tuple[Strike, ...]) -> None:
        self._config, self._strikes = config, strikes
        self._pids: dict[int, int] = {}
        self._timers: list[threading.Timer] = []
        self.struck_at_s: dict[int, float] = {}
        self.reports: list[StepReport] = []
        self.losses: list[tuple[tuple[int, ...], Layout, bool]] = []
        self.pauses_s: list[float] = []

    def started(self, pids: dict[int, int]) -> None:
        """All ranks run."""
        self._pids = pids
        self._arm(-1)

    def border(self, iteration: int) -> Border:
        """Nothing is ordered."""
        return Border()

    def observe(self, report: StepReport) -> None:
        """An iteration counts."""
        self.reports.append(report)
        self._arm(report.iteration)

    def benched(self, results: tuple[BenchResult, ...], missing: tuple[int, ...]) -> None:
        """Never asked for."""

    def lost(self, ranks: tuple[int, ...], layout: Layout, iteration: int, why: str) -> Layout | None:
        """The planner's layout."""
        plan, _ = plan_without(self._config.model, layout, ranks, UNMEASURED, self._config.layout.schedule)
        self.losses.append((ranks, layout, plan is not None))
        return None if plan is None else plan.layout

    def resumed(self, layout: Layout, iteration: int, pause_s: float) -> None:
        """The job goes on."""
        self.pauses_s.append(pause_s)

    def close(self) -> None:
        """No strike falls after this."""
        for timer in self._timers:
            timer.cancel()
            timer.join()

    def _arm(self, iteration: int) -> None:
        for strike in self._strikes:
            if strike.iteration == iteration and strike.rank in self._pids:
                timer = threading.Timer(strike.delay_s, self._strike, [strike])
                timer.start()
                self._timers.append(timer)

    def _strike(self, strike: Strike) -> None:
        try:
            os.kill(self._pids[strike.rank], strike.what)
        except ProcessLookupError:
            return  # an earlier strike, or the end of the job, was first


def make_config(tp: int, pp: int, dp: int, folder: str) -> JobConfig:
    """A job small enough for seconds, with every kind of atom."""
    return JobConfig(
        job=JobSection(iterations=ITERATIONS, dtype="float64", seed=11),
        layout=LayoutSection(tp=tp, pp=pp, dp=dp, num_microbatches=8),
        model=ModelSection(num_layers=4, hidden=32, num_heads=8, num_kv_heads=4, ffn_blocks=4, ffn_block_size=12, vocab_block_size=24, seq_len=32),
        pace=PaceSection(kind="none"),
        run=RunSection(dir=folder, verify_every=1, on_death="recover", step_deadline_s=HANG_DEADLINE_S),
    )


def make_strikes(rng: random.Random, num_ranks: int) -> tuple[Strike, ...]:
    """One to three strikes, at most one of them a hang; two may fall in the same moment."""
    ranks = rng.sample(range(num_ranks), min(num_ranks - 1, rng.choice([1, 1, 1, 2, 2, 3])))
    hang = rng.random() < 0.2
    iterations = [rng.randint(-1, ITERATIONS - 3) for _ in ranks]
    if len(ranks) > 1 and rng.random() < 0.4:
        iterations[1] = iterations[0]
    kinds = [signal.SIGSTOP if hang and i == 0 else signal.SIGKILL for i in range(len(ranks))]
    return tuple(Strike(r, i, rng.uniform(0.0, 0.12), k) for r, i, k in zip(ranks, iterations, kinds, strict=True))


def train(config: JobConfig, strikes: tuple[Strike, ...] = ()) -> tuple[Chaos, str]:
    """Run one job; returns what its director saw, and "done" or why it ended."""
    section = config.layout
    layout = Layout.uniform(
        tp=section.tp, pp=section.pp, dp=section.dp, num_layers=config.model.num_layers, num_microbatches=section.num_microbatches
    )
    director = Chaos(config, strikes)
    try:
        outcome = Supervisor(config, layout, tuple(Place(r, "here", r, "cpu") for r in layout.members), director, lambda: False).run()
        return director, outcome.kind
    except JobDied as error:
        return director, str(error)
    finally:
        director.close()


def survivors_hold_all(config: JobConfig, layout: Layout, lost: tuple[int, ...]) -> bool:
    """Whether the ranks of `layout` that are left hold every atom: what decides if a job can go on."""
    held = {rank: {(h.spec.name, atom) for h in held_tensors(config.model, layout, rank) for atom in range(h.first, h.end)} for rank in layout.ranks}
    return set().union(*(atoms for rank, atoms in held.items() if rank not in lost)) == set().union(*held.values())


def judge(config: JobConfig, director: Chaos, ended: str, reference: Chaos) -> str:
    """What is wrong with the outcome; empty if nothing is."""
    for lost, layout, went_on in director.losses:
        if went_on != survivors_hold_all(config, layout, lost):
            return f"ranks {lost} were lost, and the job {'went on' if went_on else 'ended'}, which it must not"
    must_end = any(not went_on for _, _, went_on in director.losses)
    if must_end == (ended == "done"):
        return f"the job ended so: {ended}"
    numbers = [report.iteration for report in director.reports]
    if numbers != list(range(len(numbers))) or (not must_end and len(numbers) != ITERATIONS):
        return f"iterations {numbers} counted"
    for seen, expected in zip(director.reports, reference.reports, strict=False):
        error = abs(seen.loss / expected.loss - 1.0), abs(seen.grad_norm / expected.grad_norm - 1.0)
        if not max(error) <= TOLERANCE:
            return f"loss and norm of iteration {seen.iteration} are off by {error[0]:.1e} and {error[1]:.1e}"
    left = [process.pid for process in multiprocessing.active_children()]
    return f"processes {left} are left" if left else ""


def run_seed(seed: int, references: dict[tuple[int, int, int], Chaos], folder: str) -> dict[str, Any]:
    """One random job with random strikes."""
    rng = random.Random(seed)
    shape = rng.choice(SHAPES)
    config = make_config(*shape, folder)
    if shape not in references:
        references[shape], ended = train(config)
        assert ended == "done", ended
    strikes = make_strikes(rng, int(np.prod(shape)))
    begin_s = time.monotonic()
    director, ended = train(config, strikes)
    wrong = judge(config, director, ended, references[shape])
    return {
        "seed": seed,
        "layout": "TP{} PP{} DP{}".format(*shape),
        "strikes": [f"rank {s.rank} {s.what.name} {s.delay_s * 1e3:.0f} ms after iteration {s.iteration}" for s in strikes],
        "lost": [list(lost) for lost, _, _ in director.losses],
        "outcome": "done" if ended == "done" else "ended",
        "pauses_s": [round(pause, 3) for pause in director.pauses_s],
        "wall_s": round(time.monotonic() - begin_s, 1),
        "wrong": wrong,
    }


def main() -> int:
    """Run the seeds and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="how many jobs")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    references: dict[tuple[int, int, int], Chaos] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(asked.first, asked.first + asked.seeds):
            rows.append(run_seed(seed, references, folder))
            row = rows[-1]
            print(
                f"seed {seed}  {row['layout']}  {'; '.join(row['strikes'])}  {row['outcome']}  pauses {row['pauses_s']}  {row['wrong'] or 'ok'}",
                flush=True,
            )
    pauses = [pause for row in rows for pause in row["pauses_s"]]
    wrong = [row["seed"] for row in rows if row["wrong"]]
    done = sum(row["outcome"] == "done" for row in rows)
    print(f"{len(rows) - len(wrong)} of {len(rows)} as they must be, {done} went on to the end" + (f"; wrong: {wrong}" if wrong else ""))
    if pauses:
        print(f"from missed to going on: median {statistics.median(pauses):.2f} s, worst {max(pauses):.2f} s")
    if asked.json:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(rows)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
