"""A long job with a fault every half minute: do memory, files, threads and the run directory stay flat?

    python bench/soak.py                   30 minutes
    python bench/soak.py --minutes 5 --seed 3 --json FILE

`lurcher train` with the joint policy, recovery, peer copies and respawn, 4 ranks. A fault slows a rank, lets it flap, or kills it; it is drawn from the seed.
Every process of the job is looked at every two seconds. `grown` is the last quarter's median over that of the second one: the first warms up.
The run directory holds every iteration by design; what must be flat is its growth per iteration.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console

from tables import Row, show

FAULT_EVERY_S = 30.0
FAULT_LASTS_S = (8.0, 20.0)
SAMPLE_EVERY_S = 2.0
NUM_RANKS = 4
LEAST_RANKS = 3
"""Nobody is killed while fewer are there: one may be on its way back."""
JOB = """
[job]
iterations = {iterations}
seed = {seed}
[layout]
tp = 1
pp = 2
dp = 2
num_microbatches = 16
[pace]
token_us = 25.0
[plan]
policy = "joint"
[run]
on_death = "recover"
copy_every = 10
respawn = true
step_deadline_s = 10.0
"""


class Kill(NamedTuple):
    """`rank`, or the next one that is there, is killed `at_s` seconds after the start."""

    at_s: float
    rank: int


class Sample(NamedTuple):
    """What the job's processes take at one moment, the supervisor's first; `dir_bytes` and `num_files` are the run directory's."""

    at_s: float
    iteration: int
    rss_mb: dict[str, float]
    num_fds: dict[str, int]
    num_threads: dict[str, int]
    dir_bytes: int
    num_files: int


def main() -> int:
    """Run the job and print what grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="of job and faults")
    parser.add_argument("--json", type=Path, help="write samples and rows to this file")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        samples, struck, outcome = soak(Path(folder), asked.minutes * 60.0, asked.seed)
    rows = summary(samples)
    show(Console(), f"{len(samples)} samples, {len(struck)} faults, {samples[-1].iteration} iterations; {outcome}", rows)
    if asked.json:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode({"rows": rows, "faults": struck, "samples": samples, "outcome": outcome})))
    return 0 if outcome == "done" else 1


def soak(folder: Path, duration_s: float, seed: int) -> tuple[list[Sample], list[str], str]:
    """The samples, what was done to the job, and how it ended."""
    faults, kills = draw(seed, duration_s)
    job = folder / "job.toml"
    job.write_text(JOB.format(iterations=1_000_000, seed=seed))
    run_dir = folder / "run"
    options = [word for text in faults for word in ("--fault", text)]
    command = [sys.executable, "-m", "lurcher", "train", str(job), "--run-dir", str(run_dir), "--json", *options]
    struck = list(faults)
    samples: list[Sample] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        last = [0]
        reader = threading.Thread(target=_read_progress, args=(process, last))
        reader.start()
        begin_s = time.monotonic()
        try:
            while time.monotonic() - begin_s < duration_s and process.poll() is None:
                time.sleep(SAMPLE_EVERY_S)
                now_s = time.monotonic() - begin_s
                ranks = _ranks(run_dir)
                if kills and now_s >= kills[0].at_s and len(ranks) >= LEAST_RANKS:
                    # A rank is started again three times at most; then it is another one's turn.
                    first = kills.pop(0).rank
                    rank = next(name for r in range(NUM_RANKS) if (name := str((first + r) % NUM_RANKS)) in ranks)
                    os.kill(ranks[rank], signal.SIGKILL)
                    struck.append(f"rank {rank} killed after {now_s:.0f} s")
                if ranks and (taken := _sample(now_s, last[0], {"supervisor": process.pid, **ranks}, run_dir)):
                    samples.append(taken)
            died = process.poll() is not None
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        out = process.stdout.read()
        process.wait(60.0)
        reader.join(60.0)
    verdict = json.loads(out) if out else {}
    return samples, struck, f"died: {verdict.get('summary', '')}" if died else "done"


def draw(seed: int, duration_s: float) -> tuple[list[str], list[Kill]]:
    """Fault texts, and who is killed when: one fault every half minute, every fifth a kill."""
    rng = random.Random(seed)
    texts, kills = [], []
    for number in range(1, int(duration_s / FAULT_EVERY_S)):
        at_s, rank = number * FAULT_EVERY_S, rng.randrange(NUM_RANKS)
        if number % 5 == 0:
            kills.append(Kill(at_s, rank))
            continue
        factor, lasts_s = rng.uniform(1.4, 3.0), rng.uniform(*FAULT_LASTS_S)
        if rng.random() < 0.2:
            texts.append(f"flap rank {rank} x{factor:.2f} every 4s from {at_s:.0f}s for {lasts_s:.0f}s")
        else:
            texts.append(f"slow rank {rank} x{factor:.2f} from {at_s:.0f}s for {lasts_s:.0f}s")
    return texts, kills


def summary(samples: list[Sample]) -> list[Row]:
    """Medians of the second and the last quarter, and the greater over the former."""
    quarter = len(samples) // 4
    second, last = samples[quarter : 2 * quarter], samples[-quarter:]
    rows: list[Row] = []
    for name, field in (("memory, MB", "rss_mb"), ("open files", "num_fds"), ("threads", "num_threads")):
        for who, pick in (
            ("supervisor", lambda values: values["supervisor"]),
            ("greatest rank", lambda values: max(v for k, v in values.items() if k != "supervisor")),
        ):
            before, after = (statistics.median(pick(getattr(s, field)) for s in part) for part in (second, last))
            rows.append({"what": name, "of": who, "second quarter": before, "last quarter": after, "grown": after / before})
    before, after = (_growth(part) for part in (second, last))
    rows.append({"what": "run directory, bytes an iteration", "of": "", "second quarter": before, "last quarter": after, "grown": after / before})
    before, after = second[-1].num_files, last[-1].num_files
    rows.append({"what": "files in it", "of": "", "second quarter": before, "last quarter": after, "grown": after / before})
    return rows


def _growth(part: list[Sample]) -> float:
    return (part[-1].dir_bytes - part[0].dir_bytes) / max(1, part[-1].iteration - part[0].iteration)


def _read_progress(process: subprocess.Popen[str], last: list[int]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("iteration "):
            last[0] = int(line.split()[1].split("/")[0])


def _ranks(run_dir: Path) -> dict[str, int]:
    try:
        found: dict[str, int] = json.loads((run_dir / "state.json").read_text())["ranks"]
    except (OSError, ValueError):
        return {}
    return found


def _sample(at_s: float, iteration: int, pids: dict[str, int], run_dir: Path) -> Sample | None:
    """None if a process ended while it was looked at."""
    try:
        status = {name: Path(f"/proc/{pid}/status").read_text() for name, pid in pids.items()}
        fds = {name: sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()) for name, pid in pids.items()}
        rss = {name: float(_field(text, "VmRSS")) / 1024 for name, text in status.items()}
        threads = {name: int(_field(text, "Threads")) for name, text in status.items()}
    except (OSError, StopIteration):
        return None
    files = [path for path in run_dir.rglob("*") if path.is_file()]
    return Sample(at_s, iteration, rss, fds, threads, sum(path.stat().st_size for path in files if path.exists()), len(files))


def _field(text: str, name: str) -> str:
    return next(line.split()[1] for line in text.splitlines() if line.startswith(name))


if __name__ == "__main__":
    sys.exit(main())
