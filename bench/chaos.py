"""Kill and hang ranks of small jobs at random moments: does every job go on as it must, and is the training still the same?

    python bench/chaos.py                       20 seeds (about three minutes)
    python bench/chaos.py --seeds 100
    python bench/chaos.py --backend fakenccl    on groups with NCCL's manners: nothing is raised when a peer dies; also gloo, local
    python bench/chaos.py --json FILE           also write the rows

Ranks are killed alone, together and by whole nodes, in an iteration, while the layout changes, in a benchmark and in a copy; they are stopped, spin with the
interpreter's lock, sleep before a collective and block in a read. What must happen is worked out apart from the code under test: a job goes on if and
only if the ranks that are left hold every atom between them. Every iteration's loss and gradient norm are held against a run without faults, owners
compare their digests after each iteration, only ranks that were struck may be lost, and nothing may be left behind.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from chaos_judge import Loss, Seen, footprint, judge, left_behind
from chaos_strikes import COPY_EVERY, NODE_SIZE, SIGNALS, BackendName, Strike, draw, struck_rank_main
from lurcher.config import JobConfig, JobSection, LayoutSection, ModelSection, PaceSection, RunSection
from lurcher.control.death import UNMEASURED, way_on
from lurcher.errors import JobDied
from lurcher.layout import Layout
from lurcher.records import BenchResult, Place
from lurcher.runtime.messages import Border, Cut
from lurcher.runtime.reports import Resumption, StepReport
from lurcher.runtime.supervisor import Supervisor

ITERATIONS = 8
SHAPES = ((2, 2, 2), (1, 2, 2), (2, 1, 2), (1, 1, 4), (1, 4, 2))
HANG_DEADLINE_S = 5.0
JOB_DEADLINE_S = 120.0
"""A job that is not over by then never will be."""


class Chaos:
    """A director that lets strikes fall, plans without the lost, and keeps what it is told."""

    def __init__(self, config: JobConfig, layout: Layout, strikes: tuple[Strike, ...], rng: random.Random) -> None:
        self._config, self._strikes, self._rng = config, strikes, rng
        self._layout = layout
        self._pids: dict[int, int] = {}
        self._timers: list[threading.Timer] = []
        self.seen = Seen([], [], [], self._pids)
        self.pauses_s: list[float] = []
        self._ordered: tuple[str, int] | None = None  # what is under way behind which iteration
        self.interrupted: list[str] = []
        """What was under way when ranks were lost: orders that a strike really fell into."""

    def started(self, pids: dict[int, int]) -> None:
        """All ranks run."""
        self._pids.update(pids)
        self._arm(-1, "iteration")

    def border(self, iteration: int) -> Border:
        """What strikes want to fall into is ordered: another layout for the same ranks, or a benchmark of some, so that others wait."""
        if self._arm(iteration, "reconfiguration"):
            self._ordered = ("reconfiguration", iteration)
            return Border(layout=_shuffled(self._layout, self._rng))
        struck = [rank for strike in self._strikes for rank in strike.ranks if rank in self._layout.ranks]
        if self._arm(iteration, "benchmark") and struck:
            self._ordered = ("benchmark", iteration)
            return Border(bench=(struck[0], *(rank for rank in self._layout.ranks if rank != struck[0]))[:2])
        return Border()

    def observe(self, report: StepReport) -> None:
        """An iteration counts."""
        self.seen.reports.append(report)
        self.seen.passed.append(("committed", report.iteration))
        self._layout = report.layout
        if self._ordered is not None and report.iteration > self._ordered[1]:
            self._ordered = None
        self._arm(report.iteration, "iteration")

    def benched(self, results: tuple[BenchResult, ...], missing: tuple[int, ...]) -> None:
        """Of no interest here."""

    def lost(self, ranks: tuple[int, ...], layout: Layout, iteration: int, why: str, cut: Cut | None) -> Resumption | None:
        """The planner's layout."""
        if self._ordered is not None:
            self.interrupted.append(self._ordered[0])
        way = way_on(self._config.model, layout, ranks, UNMEASURED, self._config.layout.schedule, iteration, cut)
        self.seen.losses.append(Loss(ranks, layout, iteration, cut, way.plan is not None))
        return None if way.plan is None else Resumption(way.plan.layout, way.cut)

    def resumed(self, layout: Layout, iteration: int, pause_s: float) -> None:
        """The job goes on."""
        self._layout, self._ordered = layout, None
        self.seen.passed.append(("resumed", iteration))
        self.pauses_s.append(pause_s)

    def close(self) -> None:
        """No strike falls after this."""
        for timer in self._timers:
            timer.cancel()
            timer.join()

    def _arm(self, iteration: int, moment: str) -> bool:
        """Set a timer for every strike of that moment; whether there is one."""
        due = [strike for strike in self._strikes if (strike.iteration, strike.moment) == (iteration, moment)]
        for strike in due:
            if strike.kind in SIGNALS:
                self._timers.append(threading.Timer(strike.delay_s, self._strike, [strike]))
                self._timers[-1].start()
        return bool(due)

    def _strike(self, strike: Strike) -> None:
        for rank in strike.ranks:
            try:
                os.kill(self._pids[rank], SIGNALS[strike.kind])
            except ProcessLookupError:
                continue  # an earlier strike, or the end of the job, was first


def _shuffled(layout: Layout, rng: random.Random) -> Layout:
    """The same form with its ranks in other places, and another split: state has to move."""
    names = dict(zip(layout.ranks, rng.sample(layout.ranks, len(layout.ranks)), strict=True))
    replicas = [
        msgspec.structs.replace(
            replica, stages=tuple(msgspec.structs.replace(stage, ranks=tuple(names[rank] for rank in stage.ranks)) for stage in replica.stages)
        )
        for replica in layout.replicas
    ]
    if len(replicas) > 1 and replicas[0].microbatches > 1:
        replicas[0] = msgspec.structs.replace(replicas[0], microbatches=replicas[0].microbatches - 1)
        replicas[1] = msgspec.structs.replace(replicas[1], microbatches=replicas[1].microbatches + 1)
    return msgspec.structs.replace(layout, replicas=tuple(replicas), generation=layout.generation + 1)


def make_config(tp: int, pp: int, dp: int, folder: str, copy_every: int = COPY_EVERY) -> JobConfig:
    """A job small enough for seconds, with every kind of atom."""
    return JobConfig(
        job=JobSection(iterations=ITERATIONS, dtype="float64", seed=11),
        layout=LayoutSection(tp=tp, pp=pp, dp=dp, num_microbatches=8),
        model=ModelSection(num_layers=4, hidden=32, num_heads=8, num_kv_heads=4, ffn_blocks=4, ffn_block_size=12, vocab_block_size=24, seq_len=32),
        pace=PaceSection(kind="none"),
        run=RunSection(dir=folder, verify_every=1, on_death="recover", copy_every=copy_every, step_deadline_s=HANG_DEADLINE_S),
    )


def train(config: JobConfig, strikes: tuple[Strike, ...] = (), backend: BackendName = "local", seed: int = 0) -> tuple[Chaos, str]:
    """Run one job; returns what its director saw, and "done" or why it ended."""
    section = config.layout
    layout = Layout.uniform(
        tp=section.tp, pp=section.pp, dp=section.dp, num_layers=config.model.num_layers, num_microbatches=section.num_microbatches
    )
    director = Chaos(config, layout, strikes, random.Random(seed))
    places = tuple(Place(r, f"node{r // NODE_SIZE}", r % NODE_SIZE, "cpu") for r in layout.members)
    entry = partial(struck_rank_main, strikes=strikes, backend=backend)
    deadline_s = time.monotonic() + JOB_DEADLINE_S
    try:
        outcome = Supervisor(config, layout, places, director, lambda: time.monotonic() > deadline_s, rank_main=entry).run()
        return director, outcome.kind
    except JobDied as error:
        return director, str(error)
    finally:
        director.close()


def run_seed(seed: int, references: dict[tuple[int, int, int], Seen], folder: str, backend: BackendName = "local") -> dict[str, Any]:
    """One random job with random strikes; `references` keeps the jobs without any, one a shape."""
    rng = random.Random(seed)
    shape = rng.choice(SHAPES)
    config = make_config(*shape, folder)
    if shape not in references:
        whole, ended = train(config, backend=backend)
        assert ended == "done", ended
        references[shape] = whole.seen
    scenario, strikes = draw(rng, int(np.prod(shape)), ITERATIONS)
    before = footprint(Path(folder))
    begin_s = time.monotonic()
    director, ended = train(config, strikes, backend, seed)
    wall_s = time.monotonic() - begin_s
    struck = {rank for strike in strikes for rank in strike.ranks}
    wrong = judge(config, director.seen, struck, ended, references[shape])
    return {
        "seed": seed,
        "backend": backend,
        "layout": "TP{} PP{} DP{}".format(*shape),
        "scenario": scenario,
        "strikes": [str(strike) for strike in strikes],
        "interrupted": sorted(set(director.interrupted)),
        "lost": [list(loss.ranks) for loss in director.seen.losses],
        "outcome": "done" if ended == "done" else "ended",
        "pauses_s": [round(pause, 3) for pause in director.pauses_s],
        "wall_s": round(wall_s, 1),
        "wrong": wrong or left_behind(before, footprint(Path(folder), director.seen.pids.values())),
    }


def main() -> int:
    """Run the seeds and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="how many jobs")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--backend", choices=("local", "gloo", "fakenccl"), default="local", help="what carries the tensors")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    references: dict[tuple[int, int, int], Seen] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = folder  # for the ranks: what one of them makes and leaves is then found
        for seed in range(asked.first, asked.first + asked.seeds):
            rows.append(run_seed(seed, references, folder, asked.backend))
            row = rows[-1]
            print(
                f"seed {seed}  {row['layout']}  {'; '.join(row['strikes'])}  lost {row['lost']}  {row['outcome']}"
                f"  pauses {row['pauses_s']}  {row['wall_s']} s  {row['wrong'] or 'ok'}",
                flush=True,
            )
    _sum_up(rows)
    if asked.json:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(rows)))
    return 1 if any(row["wrong"] for row in rows) else 0


def _sum_up(rows: list[dict[str, Any]]) -> None:
    """Totals, and what each scenario came to."""
    wrong = [row["seed"] for row in rows if row["wrong"]]
    done = sum(row["outcome"] == "done" for row in rows)
    print(f"{len(rows) - len(wrong)} of {len(rows)} as they must be, {done} went on to the end" + (f"; wrong: {wrong}" if wrong else ""))
    for scenario, count in Counter(row["scenario"] for row in rows).items():
        mine = [row for row in rows if row["scenario"] == scenario]
        inside = Counter(what for row in mine for what in row["interrupted"])
        words = "".join(f", {number} hit inside the {what}" for what, number in inside.items())
        print(f"  {scenario}: {count}, {sum(row['outcome'] == 'done' for row in mine)} went on{words}")
    pauses = [pause for row in rows for pause in row["pauses_s"]]
    if pauses:
        print(f"from missed to going on: median {statistics.median(pauses):.2f} s, worst {max(pauses):.2f} s")


if __name__ == "__main__":
    sys.exit(main())
