"""How long a job pauses when its layout changes or a rank is lost, beside stopping, saving, starting again and loading.

    python bench/reconfigure.py            all rows (about four minutes)
    python bench/reconfigure.py --quick    one repeat of each (about two)
    python bench/reconfigure.py --part scale    one table only; also loss, split, change
    python bench/reconfigure.py --json FILE

Every row is a real job of 4 or 8 processes. A change is timed from the first rank that stops at the border to the last one that leaves it; a loss from
the signal to the first chunk of the iteration that is computed next. A restart saves each slice once, ends all processes, starts new ones and loads what
each needs: from a warm forkserver, or cold, importing everything. It writes to the page cache only, which is as fast as a checkpoint can be.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console

import reconfigure_restart as restart
from lurcher.config import JobConfig, JobSection, LayoutSection, ModelSection, PaceSection, RunSection
from lurcher.control.death import UNMEASURED, way_on
from lurcher.layout import LayerRange, Layout, Replica, Stage
from lurcher.records import BenchResult, Op, Place
from lurcher.runtime.messages import Border, Cut
from lurcher.runtime.reports import Resumption, StepReport
from lurcher.runtime.supervisor import Supervisor
from tables import Row, show

REPEATS = 3
PARTS = ("loss", "split", "change", "scale")
PART_DEADLINE_S = 300.0
HANG_DEADLINE_S = 2.0
MB = 1e6


class Orders:
    """A director that orders layouts at iterations, strikes ranks after others, and keeps what it sees."""

    def __init__(self, config: JobConfig, layouts: dict[int, Layout], strikes: dict[int, tuple[int, signal.Signals]]) -> None:
        self._config, self._layouts, self._strikes = config, layouts, strikes
        self._generation = 0
        self._pids: dict[int, int] = {}
        self._timers: list[threading.Timer] = []
        self.struck_ns: list[int] = []
        self.first_chunk_ns: list[int] = []
        self.missed_to_go_s: list[float] = []
        self.reports: list[StepReport] = []

    def started(self, pids: dict[int, int]) -> None:
        """All ranks run."""
        self._pids = pids

    def border(self, iteration: int) -> Border:
        """The layout that is due."""
        if iteration not in self._layouts:
            return Border()
        self._generation += 1
        return Border(layout=msgspec.structs.replace(self._layouts[iteration], generation=self._generation))

    def observe(self, report: StepReport) -> None:
        """An iteration counts; a strike falls in the middle of the next one."""
        if len(self.first_chunk_ns) < len(self.missed_to_go_s):
            chunks = report.events[report.events["op"] == Op.FORWARD]
            self.first_chunk_ns.append(int(chunks["start_ns"].min()))
        self.reports.append(report)
        if report.iteration in self._strikes:
            timer = threading.Timer(0.02, self._strike, self._strikes[report.iteration])
            timer.start()
            self._timers.append(timer)

    def benched(self, results: tuple[BenchResult, ...], missing: tuple[int, ...]) -> None:
        """Never asked for."""

    def lost(self, ranks: tuple[int, ...], layout: Layout, iteration: int, why: str, cut: Cut | None) -> Resumption | None:
        """The planner's layout."""
        way = way_on(self._config.model, layout, ranks, UNMEASURED, "1f1b", iteration, cut)
        return None if way.plan is None else Resumption(way.plan.layout, way.cut)

    def returning(self, absent: tuple[int, ...]) -> tuple[int, ...]:
        """Nobody comes back."""
        return ()

    def revived(self, rank: int, pid: int) -> None:
        """Nobody comes back."""

    def resumed(self, layout: Layout, iteration: int, pause_s: float) -> None:
        """The job goes on."""
        self._generation = layout.generation
        self.missed_to_go_s.append(pause_s)

    def close(self) -> None:
        """No strike falls after this."""
        for timer in self._timers:
            timer.cancel()
            timer.join()

    def _strike(self, rank: int, what: signal.Signals) -> None:
        self.struck_ns.append(time.monotonic_ns())
        os.kill(self._pids[rank], what)


def run(config: JobConfig, layout: Layout, layouts: dict[int, Layout], strikes: dict[int, tuple[int, signal.Signals]]) -> Orders:
    """One job to its end."""
    orders = Orders(config, layouts, strikes)
    try:
        Supervisor(config, layout, tuple(Place(r, "here", r, "cpu") for r in layout.members), orders, lambda: False).run()
    finally:
        orders.close()
    return orders


def small_config(folder: str, tp: int, pp: int, dp: int, iterations: int) -> JobConfig:
    """A job whose pauses are those of the protocol: next to no state, chunks of some milliseconds."""
    return JobConfig(
        job=JobSection(iterations=iterations, seed=11),
        layout=LayoutSection(tp=tp, pp=pp, dp=dp, num_microbatches=16),
        model=ModelSection(num_layers=2, hidden=32, num_heads=8, num_kv_heads=4, ffn_blocks=4, ffn_block_size=12, vocab_block_size=24, seq_len=32),
        pace=PaceSection(kind="none"),
        run=RunSection(dir=folder, verify_every=0, on_death="recover", copy_every=0, step_deadline_s=HANG_DEADLINE_S),
    )


def large_config(folder: str, dp: int, iterations: int) -> JobConfig:
    """A job of 19 million parameters: 227 MB of parameters and moments, each replica holding them once."""
    return JobConfig(
        job=JobSection(iterations=iterations, seed=11),
        layout=LayoutSection(tp=2, pp=2, dp=dp, num_microbatches=4 * dp),
        model=ModelSection(num_layers=6, hidden=512, num_heads=8, num_kv_heads=4, ffn_blocks=8, ffn_block_size=192, vocab_block_size=24, seq_len=32),
        pace=PaceSection(kind="none"),
        run=RunSection(dir=folder, verify_every=0, copy_every=0, step_deadline_s=60.0),
    )


def loss_rows(folder: str, repeats: int) -> list[Row]:
    """Kills and hangs of 8 ranks that each hold the whole model: nothing has to move."""
    rows: list[Row] = []
    layout = Layout.uniform(tp=1, pp=1, dp=8, num_layers=2, num_microbatches=16)
    for name, what in (("killed", signal.SIGKILL), ("hangs", signal.SIGSTOP)):
        pauses_s: list[float] = []
        for repeat in range(repeats):
            strikes = {5 + 8 * i: (rank, what) for i, rank in enumerate(((0, 3, 6), (7, 1, 2), (5, 4, 0))[repeat])}
            seen = run(small_config(folder, 1, 1, 8, 30), layout, {}, strikes)
            pauses_s += [(first - struck) * 1e-9 for struck, first in zip(seen.struck_ns, seen.first_chunk_ns, strict=True)]
        allowed = 1.0 if what == signal.SIGKILL else HANG_DEADLINE_S + 1.0
        rows.append(
            {
                "one of 8": name,
                "times": len(pauses_s),
                "signal to next chunk, median s": statistics.median(pauses_s),
                "worst s": max(pauses_s),
                "asked for s": allowed,
            }
        )
    return rows


def split_row(folder: str) -> Row:
    """Micro-batches moved to and fro."""
    layout = Layout.uniform(tp=2, pp=2, dp=2, num_layers=2, num_microbatches=16)
    layouts = {6 * i + 5: layout.with_split((9, 7) if i % 2 == 0 else (8, 8)) for i in range(6)}
    seen = run(small_config(folder, 2, 2, 2, 44), layout, layouts, {})
    iteration_s = statistics.median(_gaps_s(seen))
    return {"change": "micro-batches 8/8 to 9/7 and back", "pause, iterations": statistics.median(_pauses_s(seen)) / iteration_s, "asked for": 1.0}


def _pauses_s(seen: Orders) -> list[float]:
    """Per border that paused: from the first rank that stopped to the last that went on."""
    found = []
    for report in seen.reports:
        pauses = report.events[report.events["op"] == Op.PAUSE]
        if len(pauses):
            found.append(float(pauses["end_ns"].max() - pauses["start_ns"].min()) * 1e-9)
    return found


def _gaps_s(seen: Orders) -> list[float]:
    """Durations of the iterations that no border paused."""
    return [
        float(np.median([end - start for start, end in report.window_ns.values()])) * 1e-9
        for report in seen.reports
        if not (report.events["op"] == Op.PAUSE).any()
    ]


def changes(dp: int) -> dict[str, Layout]:
    """What a job of TP2 PP2 changes to: layers, tensor degrees, ranks that change places."""
    home = Layout.uniform(tp=2, pp=2, dp=dp, num_layers=6, num_microbatches=4 * dp)
    first, *others = home.replicas
    cut = tuple(
        Replica((Stage(r.stages[0].ranks, (1, 1), (LayerRange(0, 4),)), Stage(r.stages[1].ranks, (1, 1), (LayerRange(4, 6),))), r.microbatches)
        for r in home.replicas
    )
    wide = Replica((Stage((*first.stages[0].ranks, *first.stages[1].ranks), (1,) * 4, (LayerRange(0, 6),)),), first.microbatches)
    swapped = Replica(
        (
            Stage(first.stages[1].ranks, (1, 1), first.stages[0].chunks),
            Stage(first.stages[0].ranks, (1, 1), first.stages[1].chunks),
        ),
        first.microbatches,
    )
    new = {"layers 3/3 to 4/2": cut, "TP2 PP2 to TP4 PP1 in a replica": (wide, *others), "the stages of a replica swap ranks": (swapped, *others)}
    return {name: msgspec.structs.replace(home, replicas=tuple(replicas)) for name, replicas in new.items()}


def change_rows(folder: str, repeats: int) -> list[Row]:
    """Changes that move state, live, beside a warm and a cold restart of the same job."""
    rows: list[Row] = []
    home = Layout.uniform(tp=2, pp=2, dp=2, num_layers=6, num_microbatches=8)
    for name, layout in changes(2).items():
        live_s = live_pauses_s(folder, 2, home, layout, repeats)
        config = large_config(folder, 2, 1)
        parts = {}
        for cold in (False, True):
            with tempfile.TemporaryDirectory() as saved:
                parts[cold] = [restart.restart(config, home, layout, Path(saved), cold=cold).total_s for _ in range(repeats)]
        live, warm, cold_s = statistics.median(live_s), statistics.median(parts[False]), statistics.median(parts[True])
        rows.append(
            {"change": name, "live s": live, "warm restart s": warm, "cold s": cold_s, "warm / live": warm / live, "cold / live": cold_s / live}
        )
    return rows


def live_pauses_s(folder: str, dp: int, home: Layout, layout: Layout, repeats: int) -> list[float]:
    """Pauses of a change and its way back, `repeats` times each, in one job."""
    iterations = 2 + 4 * repeats
    layouts = {1 + 2 * i: (layout if i % 2 == 0 else home) for i in range(2 * repeats)}
    return _pauses_s(run(large_config(folder, dp, iterations), home, layouts, {}))


def scale_row(repeats: int) -> Row:
    """4 and 8 ranks where every rank gives all that it holds to another: equal bytes per rank. The 4 also on half of the cores: as many cores per rank."""
    cores = sorted(os.sched_getaffinity(0))
    eight, four = scale_s(2, repeats, cores), scale_s(1, repeats, cores)
    half = scale_s(1, repeats, cores[: len(cores) // 2] or cores)
    return {
        "all stages swap ranks": "4 and 8 ranks",
        "8 ranks s": eight,
        "4 ranks s": four,
        "ratio": eight / four,
        "4 ranks on half of the cores s": half,
        "ratio at equal cores per rank": eight / half,
        "asked for": 1.3,
    }


def scale_s(dp: int, repeats: int, cores: list[int]) -> float:
    """The pause of that change in a process of its own, on these cores only."""
    command = [sys.executable, __file__, "--swap-all", str(dp), "--repeats", str(repeats)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=PART_DEADLINE_S, preexec_fn=lambda: os.sched_setaffinity(0, cores)
    )
    return float(done.stdout)


def swap_all_s(folder: str, dp: int, repeats: int) -> float:
    """Median pause when the two stages of every replica swap their ranks."""
    home = Layout.uniform(tp=2, pp=2, dp=dp, num_layers=6, num_microbatches=4 * dp)
    swapped = tuple(
        Replica((Stage(r.stages[1].ranks, (1, 1), r.stages[0].chunks), Stage(r.stages[0].ranks, (1, 1), r.stages[1].chunks)), r.microbatches)
        for r in home.replicas
    )
    return statistics.median(live_pauses_s(folder, dp, home, msgspec.structs.replace(home, replicas=swapped), repeats))


def main() -> int:
    """Run the rows and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one repeat of each")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--part", action="append", choices=PARTS, help="these tables only")
    parser.add_argument("--swap-all", type=int, metavar="DP", help="print the pause of one change with so many replicas, in seconds, and no table")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="changes and ways back of --swap-all")
    asked = parser.parse_args()
    repeats = 1 if asked.quick else REPEATS
    console = Console()
    tables: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory() as folder:
        if asked.swap_all:
            print(swap_all_s(folder, asked.swap_all, asked.repeats))
            return 0
        parts: dict[str, Any] = {
            "loss": ("A rank is lost, no state moves", lambda: loss_rows(folder, repeats)),
            "split": ("Micro-batches move", lambda: [split_row(folder)]),
            "change": ("227 MB of state, 8 ranks", lambda: change_rows(folder, repeats)),
            "scale": ("Equal bytes per rank", lambda: [scale_row(repeats)]),
        }
        for title, measure in (parts[name] for name in asked.part or PARTS):
            tables[title] = measure()
            show(console, title, tables[title])
    if asked.json:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(tables)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
