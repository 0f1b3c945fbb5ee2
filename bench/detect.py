"""What each detector finds, how soon, how often it cries wolf and what it costs. Prints tables; `--json FILE` writes them.

All of it on seeded series whose noise is a model of ours (detect_series.py). Constants were chosen on seed TUNING, tables come
from seed REPORTING. `--quick` takes about two minutes and is for seeing that it runs; the full run takes most of an hour on one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import Progress, track

from detect_corpus import MIXES, Score, judge
from detect_run import BAYESIAN, DETECTORS, DURATIONS, ONSET, SHAPES, SLOWDOWNS, Delays, all_faults, delays, false_alarms, memory, speed
from detect_series import NOISE, REPORTING, TUNING, Fault, Shape
from tables import Row, show

TUNED: Mapping[str, str] = {
    "default": "dead zone, rungs, clip, watch level, follow speed, and what two rungs are raised and the correlation is widened by while few points are known, "
    "for power at 5 % without an alarm on the tuning series; the least rise on public logs",
    "sliding window": "as published: mean of 10 against the median of 50, 10 %; nothing was searched",
    "CUSUM": "same robust level and scatter as the default, spikes clipped; allowance half of 5 %; a round threshold above the least without an alarm on 1e5 tuning points a class",
    "BOCD": "0.9 is GREYHOUND's; hazard 1/250, k = 9 and the prior were set once, not searched; a run needs 3 points, or every spike would be one",
    "BOCD + verification": "as BOCD; 10 % between the means before and after is GREYHOUND's",
}


class Sizes(NamedTuple):
    """How much is run: healthy iterations per detector (the Bayesian ones take fewer), traces per noise class and of variable length alone,
    corpora, points of the speed test.
    """

    healthy: int
    healthy_bayesian: int
    traces: int
    traces_bayesian: int
    traces_variable: int
    corpora: int
    speed: int


QUICK = Sizes(160_000, 16_000, 8, 2, 20, 1, 20_000)
FULL = Sizes(10_400_000, 1_040_000, 64, 64, 500, 3, 1_000_000)


class Bench:
    """One run: sizes, seed, and where progress is shown."""

    def __init__(self, sizes: Sizes, seed: int, names: list[str], console: Console) -> None:
        self.sizes, self.seed, self.names, self.console = sizes, seed, names, console

    def silence(self) -> list[Row]:
        """False alarms on healthy iterations."""
        rows: list[Row] = []
        for name in self.names:
            per_class = (self.sizes.healthy_bayesian if name in BAYESIAN else self.sizes.healthy) // len(NOISE)
            alarms: dict[str, int] = {}
            with Progress(console=self.console, transient=True) as progress:
                task = progress.add_task(f"healthy iterations: {name}", total=per_class * len(NOISE))
                for k, noise in enumerate(NOISE):
                    for seen in false_alarms(DETECTORS[name], noise, self.seed, per_class):
                        progress.update(task, completed=k * per_class + seen.num_iterations)
                        alarms[noise] = seen.num_alarms
            num, total = per_class * len(NOISE), sum(alarms.values())
            rows.append({"detector": name, "iterations": num, "alarms": total, "per 1e6": 1e6 * total / num, "95 % below": upper_bound(total, num)})
            rows[-1].update({f"{noise}, per 1e6": 1e6 * count / per_class for noise, count in alarms.items()})
        return rows

    def power(self) -> list[Row]:
        """Share of faults found while they last, and how late."""
        rows: list[Row] = []
        for name in self.names:
            found: dict[str, dict[tuple[float, Shape], Delays]] = {}
            traces = self.sizes.traces_bayesian if name in BAYESIAN else self.sizes.traces
            with Progress(console=self.console, transient=True) as progress:
                task = progress.add_task(f"faults: {name}", total=len(NOISE))
                for noise in NOISE:
                    found[noise] = delays(DETECTORS[name], noise, self.seed, range(traces), all_faults())
                    progress.advance(task)
            for slowdown in SLOWDOWNS:
                for duration in DURATIONS:
                    for shape in SHAPES:
                        rows.append(_cell(name, slowdown, duration, shape, {noise: cells[slowdown, shape] for noise, cells in found.items()}))
        return rows

    def short_baselines(self) -> list[Row]:
        """The same for a fault soon after the start; step, 200 iterations."""
        rows: list[Row] = []
        for name in self.names:
            traces = self.sizes.traces_bayesian if name in BAYESIAN else self.sizes.traces
            for onset in track((20, 50, 100, 300), f"short baselines: {name}", console=self.console, transient=True):
                faults: dict[tuple[float, Shape], Fault] = {(s, "step"): Fault(onset, 200, s, "step") for s in (1.05, 1.10, 1.20)}
                found = {noise: delays(DETECTORS[name], noise, self.seed, range(5_000, 5_000 + traces), faults) for noise in NOISE}
                for slowdown in (1.05, 1.10, 1.20):
                    cell = _cell(name, slowdown, 200, "step", {noise: cells[slowdown, "step"] for noise, cells in found.items()})
                    rows.append(
                        {"detector": name, "healthy before": onset, **{k: v for k, v in cell.items() if k not in ("detector", "lasting", "onset")}}
                    )
        return rows

    def variable_length(self) -> list[Row]:
        """Sequences of variable length, whose work is known: step on top of durations with a CV of 15 to 25 %."""
        faults: dict[tuple[float, Shape], Fault] = {(s, "step"): Fault(ONSET, 200, s, "step") for s in (1.05, 1.10, 1.20)}
        numbers = range(10_000, 10_000 + self.sizes.traces_variable)
        rows: list[Row] = []
        for name in track(self.names, "variable length", console=self.console, transient=True):
            for (slowdown, _), found in delays(DETECTORS[name], "variable length", self.seed, numbers, faults).items():
                late = found.within(200)
                rows.append(
                    {
                        "detector": name,
                        "slowdown": f"{slowdown - 1:.0%}",
                        "traces": len(numbers),
                        "alarms while healthy": found.num_early,
                        "healthy iterations": ONSET * len(numbers),
                        "found within 20": len(found.within(20)) / max(1, len(found.delays)),
                        "within 200": len(late) / max(1, len(found.delays)),
                        **{
                            said: float(np.quantile(late, q)) if len(late) else ""
                            for said, q in (("median delay", 0.5), ("p90", 0.9), ("worst", 1.0))
                        },
                    }
                )
        return rows

    def cost(self) -> list[Row]:
        """Time and memory per point."""
        rows: list[Row] = []
        for name in track(self.names, "time per point", console=self.console, transient=True):
            for with_residual in (False, True) if name == "default" else (False,):
                num = self.sizes.speed // (20 if name in BAYESIAN else 1)
                took = speed(DETECTORS[name], num, self.seed, with_residual=with_residual)
                kept = memory(DETECTORS[name], num // 10, self.seed, with_residual=with_residual)
                rows.append(
                    {
                        "detector": name + (" with residual" if with_residual else ""),
                        "us/point": took.us,
                        "points": num,
                        "first tenth, us": took.first_tenth_us,
                        "last tenth, us": took.last_tenth_us,
                        "reference loop, ns": took.reference_ns,
                        "ratio": 1e3 * took.us / took.reference_ns,
                        "held, bytes": kept.held,
                        "added by the later half": kept.added,
                    }
                )
        return rows

    def greyhound_tables(self) -> list[Row]:
        """GREYHOUND, Tables 3 and 4."""
        rows: list[Row] = []
        for mix in MIXES:
            for name in self.names:
                with Progress(console=self.console, transient=True) as progress:
                    task = progress.add_task(f"{mix.kind} jobs: {name}", total=mix.num_jobs * self.sizes.corpora)
                    score = Score(0, 0, 0, 0)
                    for score in judge(DETECTORS[name], mix, self.seed, self.sizes.corpora):  # noqa: B007  # the last one counts
                        progress.advance(task)
                rows.append(
                    {
                        "table": "3 (compute)" if mix.kind == "compute" else "4 (communication)",
                        "detector": name,
                        "jobs": score.num_healthy + score.num_slow,
                        "accuracy": score.accuracy,
                        "FPR": score.fpr,
                        "FNR": score.fnr,
                    }
                )
        return rows


def upper_bound(alarms: int, iterations: int) -> str:
    """95 % bound on the rate per iteration: the rule of three where there was none."""
    return f"{3 / iterations:.1e}" if alarms == 0 else ""


def _cell(name: str, slowdown: float, duration: int, shape: Shape, found: Mapping[str, Delays]) -> Row:
    judged = {noise: len(d.delays) for noise, d in found.items()}
    power = {noise: len(d.within(duration)) / judged[noise] for noise, d in found.items() if judged[noise]}
    late = np.concatenate([d.within(duration) for d in found.values()])
    worst = min(power, key=lambda noise: power[noise])
    return {
        "detector": name,
        "slowdown": f"{slowdown - 1:.0%}",
        "lasting": duration,
        "onset": shape,
        "traces": sum(judged.values()),
        "early alarms": sum(d.num_early for d in found.values()),
        "found": float(np.mean(list(power.values()))),
        "worst": power[worst],
        "worst noise": worst if power[worst] < 1 else "",
        "median delay": float(np.median(late)) if len(late) else "",
        "p90 delay": float(np.quantile(late, 0.9)) if len(late) else "",
    }


def main() -> None:
    """Run all tables and show them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a few traces only")
    parser.add_argument("--json", type=Path, help="write the tables to this file")
    parser.add_argument("--detector", action="append", choices=list(DETECTORS), help="this one only; may be repeated")
    parser.add_argument("--seeds", choices=["reporting", "tuning"], default="reporting", help="tuning: the series that constants were chosen on")
    args = parser.parse_args()
    seed = TUNING if args.seeds == "tuning" else REPORTING
    bench = Bench(QUICK if args.quick else FULL, seed, args.detector or list(DETECTORS), Console(stderr=True))
    console = Console()
    result: dict[str, object] = {"seed": seed, "sizes": bench.sizes._asdict(), "tuned": dict(TUNED)}
    for name, say in TUNED.items():
        console.print(f"[bold]{name}[/]: {say}", highlight=False)
    for title, run in (
        ("False alarms on healthy iterations", bench.silence),
        ("Faults found while they last, delays in iterations", bench.power),
        ("Variable length of sequences, work known, step after 600 healthy iterations", bench.variable_length),
        ("Short baselines: found within 200 iterations of a step", bench.short_baselines),
        ("GREYHOUND, Tables 3 and 4 redone", bench.greyhound_tables),
        ("Cost", bench.cost),
    ):
        rows = run()
        show(console, title, rows)
        result[title] = rows
        if args.json:  # after each table, so that a run cut short has left something
            args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
