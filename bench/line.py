"""The whole line on real processes: faults that are found and mitigated, healthy runs that stay quiet, a fault from outside.

    python bench/line.py            one of each (about five minutes)
    python bench/line.py --full     ranks 0, 3, 5, 6 x factors 1.6 and 2.5; seeds 1 to 5, plain and bucketed; four layouts stopped from outside
    python bench/line.py --json FILE  also write the rows

Figures depend on an idle machine of two cores or more; they are ratios inside one run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from lurcher.runlog import RunReader

DEADLINE_S = 400.0
STOP_S = CONTINUE_S = 0.010
STOPPED_ITERATIONS = 25
ONSET = 25
LAYOUTS = {"TP2 PP2 DP2": (2, 2, 2), "TP1 PP4 DP2": (1, 4, 2), "TP4 PP1 DP2": (4, 1, 2), "TP2 PP1 DP4": (2, 1, 4)}


def main() -> int:
    """Run what was asked for and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="every rank, factor, seed and layout")
    parser.add_argument("--only", choices=["fault", "healthy", "outside"], help="one part only")
    parser.add_argument("--case", action="append", metavar="NAME", help="these cases only, by their name in the table")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, run in _cases(asked.full, asked.only, Path(folder)):
            if asked.case and name not in asked.case:
                continue
            rows.append({"case": name, **run()})
            print("  ".join(f"{key} {_shown(value)}" for key, value in rows[-1].items()), flush=True)
            if asked.json:
                asked.json.write_text(json.dumps(rows, indent=1))
    failed = [row["case"] for row in rows if not row["ok"]]
    print(f"{len(rows) - len(failed)} of {len(rows)} as they should be" + (f"; not: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def _cases(full: bool, only: str | None, folder: Path) -> list[tuple[str, Any]]:
    cases: list[tuple[str, Any]] = []
    if only in (None, "fault"):
        for factor in (1.6, 2.5) if full else (1.6,):
            for rank in (0, 3, 5, 6) if full else (5,):
                cases.append((f"rank {rank} x{factor}", lambda r=rank, f=factor: _fault(folder / f"fault-{r}-{f}", r, f)))
    if only in (None, "healthy"):
        for seed in range(1, 6) if full else (1,):
            for bucketed in (False, True):
                name = f"healthy seed {seed}{' bucketed' if bucketed else ''}"
                cases.append((name, lambda n=name, s=seed, b=bucketed: _healthy(folder / n.replace(" ", "-"), s, b)))
    if only in (None, "outside"):
        for name, grid in LAYOUTS.items() if full else [("TP2 PP2 DP2", LAYOUTS["TP2 PP2 DP2"])]:
            cases.append((f"stopped from outside, {name}", lambda n=name, g=grid: _outside(folder / n.replace(" ", ""), g)))
    return cases


def _fault(run_dir: Path, rank: int, factor: float) -> dict[str, Any]:
    verdict = _demo(run_dir, "--slow-rank", str(rank), "--slow-factor", str(factor), "--seed", str(rank))
    wanted = {1.6: 1.15, 2.5: 1.35}[factor]
    row = _mitigated(verdict, run_dir, rank, ONSET)
    row["ok"] = row["named"] and row["delay"] is not None and row["delay"] <= 8 and row["gain"] >= wanted and abs(row["recovered"] - 1.0) <= 0.05
    return row


def _healthy(run_dir: Path, seed: int, bucketed: bool) -> dict[str, Any]:
    verdict = _demo(run_dir, "--healthy", "--seed", str(seed), *(["--bucketed"] if bucketed else []))
    durations, _ = _series(run_dir)
    ok = verdict["verdict"] == "healthy" and not verdict["events"] and (not bucketed or _cov(durations) > 0.04)
    return {"verdict": verdict["verdict"], "events": len(verdict["events"]), "raw_cov": _cov(durations), **_quality(run_dir), "ok": ok}


def _outside(folder: Path, grid: tuple[int, int, int]) -> dict[str, Any]:
    """Train without any fault and stop and continue one rank from here; lurcher is not told."""
    folder.mkdir(parents=True)
    tp, pp, dp = grid
    victim = tp * pp * dp - 3
    job = folder / "job.toml"
    job.write_text(f"[job]\niterations = 76\n[layout]\ntp = {tp}\npp = {pp}\ndp = {dp}\n")
    run_dir = folder / "run"
    command = [sys.executable, "-m", "lurcher", "train", str(job), "--run-dir", str(run_dir), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        onset = _stop_and_continue(process, run_dir, victim)
        out, _ = process.communicate(timeout=DEADLINE_S)
    row = _mitigated(json.loads(out), run_dir, victim, onset)
    row["ok"] = row["named"] and row["gain"] > 1.05 and row["reverted"]
    return row


def _stop_and_continue(process: subprocess.Popen[str], run_dir: Path, victim: int) -> int:
    """Returns the iteration in which it began. Progress is read from the job's own plain lines."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("iteration 21/"):
            break
    pid = json.loads((run_dir / "state.json").read_text())["ranks"][str(victim)]
    begin = time.monotonic()
    onset, done = 21, 0
    os.set_blocking(process.stderr.fileno(), False)
    rate_s = _iteration_s(line)
    try:
        while done < STOPPED_ITERATIONS * rate_s * 1.3 and process.poll() is None:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STOP_S)
            os.kill(pid, signal.SIGCONT)
            time.sleep(CONTINUE_S)
            done = time.monotonic() - begin
    except ProcessLookupError:
        pass
    finally:
        os.set_blocking(process.stderr.fileno(), True)
    return onset


def _iteration_s(line: str) -> float:
    """Seconds an iteration takes, from `iteration 21/76  67.9/min ...`."""
    return 60.0 / float(line.split()[2].removesuffix("/min"))


def _demo(run_dir: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "lurcher", "demo", "--json", "--quiet", "--run-dir", str(run_dir), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    verdict: dict[str, Any] = json.loads(done.stdout)
    return verdict


def _mitigated(verdict: dict[str, Any], run_dir: Path, rank: int, onset: int) -> dict[str, Any]:
    events = [event for event in verdict["events"] if event["kind"] == "fail_slow"]
    first = events[0] if events else None
    suspects = first["suspects"] if first else []
    rates = verdict["throughput"]
    healthy, slow, mitigated, recovered = (rates[f"{k}_iter_per_min"] or float("nan") for k in ("healthy", "slow", "mitigated", "recovered"))
    applied = [r for r in verdict["reconfigurations"] if r["outcome"] == "applied"]
    predicted = applied[0]["plan"]["present_s"] / applied[0]["plan"]["predicted_s"] if applied else float("nan")
    return {
        "named": bool(suspects) and suspects[0]["component"]["ranks"] == [rank] and first["cause"] == "compute" and first["validated"],
        "factor": suspects[0]["slowdown"] if suspects else float("nan"),
        "delay": first["detected_iteration"] - onset if first else None,
        "slowed": healthy / slow,
        "gain": mitigated / slow,
        "predicted_gain": predicted,
        "gain_error": predicted / (mitigated / slow) - 1.0,
        "recovered": recovered / healthy,
        "split": "/".join(str(r["microbatches"]) for r in applied[0]["plan"]["layout"]["replicas"]) if applied else "-",
        "reverted": any(r["outcome"] == "reverted" for r in verdict["reconfigurations"]),
        "events": len(verdict["events"]),
        **_quality(run_dir),
        "wall_s": verdict["wall_s"],
    }


def _quality(run_dir: Path) -> dict[str, float]:
    """Median error of the predicted iteration while healthy, and the real CPU's share of the emulated time."""
    durations, expected = _series(run_dir)
    healthy = np.isfinite(expected) & (np.arange(len(expected)) < 21)
    said = " ".join(d.reason for d in RunReader(run_dir).decisions() if d.reason.startswith("real CPU of a chunk"))
    shares = [float(share) / 100 for share in re.findall(r"([\d.]+)%", said)]
    median, high, _, over, total = shares if len(shares) == 5 else [float("nan")] * 5
    return {
        "predictor_error": float(np.median(np.abs(expected[healthy] / durations[healthy] - 1.0))),
        "chunk_cpu": median,
        "chunk_cpu_p90": high,
        "chunks_over": over,
        "real_cpu": total,
    }


def _series(run_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    rows = RunReader(run_dir).iterations()
    one = rows[rows["rank"] == rows["rank"].min()]
    return one["duration_s"][3:], one["expected_s"][3:]


def _cov(durations: np.ndarray) -> float:
    return float(durations.std() / durations.mean())


def _shown(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
