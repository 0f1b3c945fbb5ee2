"""What-if analysis of operation traces: time and memory, beside a straightforward replay and, given a checkout of it, ByteDance's analyser.

    python bench/whatif.py TRACE.parquet...              whole analysis, one what-if, and the same what-ifs replayed one by one
    python bench/whatif.py TRACE.parquet... --peer DIR   also DIR/analyzer of a ByteDance-Seed/StragglerAnalysis checkout (needs pandas < 3, pyyaml, tqdm)
    python bench/whatif.py --start TRACE.parquet...      only the CPU of the whole command, beside that of a Python that imports numpy and pyarrow.parquet
    python bench/whatif.py --scale                       one made-up step of pp4 dp8 .. pp16 dp512 with up to 512 micro-batches
    python bench/whatif.py ... --json FILE               also write the rows

Times are CPU seconds of whole processes, interpreter and imports included; memory is their peak. `alone` is the same without start and imports.
`start` is the CPU of a Python that only imports numpy and pyarrow.parquet, on one BLAS thread as the command has it: no analysis can cost less.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import whatif_made

SCALES = ((4, 8, 32), (8, 64, 128), (16, 128, 256), (16, 512, 512))
"""Stages, replicas, micro-batches a replica."""
DEADLINE_S = 1800.0
STARTS = 9
"""Runs of which a whole command's CPU is the median, in turn with bare starts: the pace of a machine changes within minutes."""
BARE = "import os; os.environ.setdefault('OPENBLAS_NUM_THREADS', '1'); import numpy, pyarrow.parquet"
COMMAND = [sys.executable, "-m", "lurcher", "analyze", "--json"]

WATCHER = "import resource as r,subprocess as s,sys;d=s.run(sys.argv[1:]);u=r.getrusage(r.RUSAGE_CHILDREN);print(u.ru_utime+u.ru_stime,u.ru_maxrss,file=sys.stderr);sys.exit(d.returncode)"


def main() -> int:
    """Measure what was asked for and print one row each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--peer", type=Path, metavar="DIR", help="a checkout of ByteDance-Seed/StragglerAnalysis")
    parser.add_argument("--start", action="store_true", help="only what the whole command costs beside a bare start")
    parser.add_argument("--scale", action="store_true", help="made-up traces up to pp16 dp512")
    parser.add_argument("--most", type=int, default=len(SCALES), help="only so many of the sizes")
    parser.add_argument("--last", action="store_true", help="only the largest size")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = [started(path) if asked.start else measured(path, asked.peer) for path in asked.traces]
    if asked.scale:
        rows += [scaled(*size) for size in (SCALES[-1:] if asked.last else SCALES[: asked.most])]
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))
    return 0


def measured(path: Path, peer: Path | None) -> dict[str, Any]:
    """Our whole command on a trace, its parts, and the others'."""
    verdict, cost = whole(path)
    row: dict[str, Any] = {"trace": path.name, "verdict": json.loads(verdict)["verdict"], **cost, **parts(path)}
    if peer is not None:
        with tempfile.TemporaryDirectory() as folder:
            meta = path.with_name(path.stem.replace("trace-", "meta-") + ".yaml")
            command = [sys.executable, "-m", "analyzer.wia", "--trace", str(path), "--metadata", str(meta), "--dump-dir", folder]
            runs = [in_process(command, cwd=peer)[1] for _ in range(4)][1:]
            theirs = {key: float(np.median([run[key] for run in runs])) for key in runs[0]}
        row |= {f"peer_{key}": value for key, value in theirs.items()}
        row |= {"cpu_ratio": cost["cpu_s"] / theirs["cpu_s"], "memory_ratio": cost["peak_mb"] / theirs["peak_mb"]}
    show(row)
    return row


def started(path: Path) -> dict[str, Any]:
    """Only the whole command, beside a bare start."""
    row = {"trace": path.name, **whole(path)[1]}
    show(row)
    return row


def whole(path: Path) -> tuple[bytes, dict[str, float]]:
    """What the command prints, and its cost: medians over runs in turn with bare starts, and the least CPU of both."""
    verdict, _ = in_process([*COMMAND, str(path)])  # compiles what is not compiled yet
    in_process([sys.executable, "-c", BARE])
    pairs = [(in_process([*COMMAND, str(path)])[1], in_process([sys.executable, "-c", BARE])[1]) for _ in range(STARTS)]
    cost = {key: float(np.median([mine[key] for mine, _ in pairs])) for key in pairs[0][0]}
    start = float(np.median([bare["cpu_s"] for _, bare in pairs]))
    least, least_start = (min(run[i]["cpu_s"] for run in pairs) for i in (0, 1))
    return verdict, {**cost, "least_cpu_s": least, "start_cpu_s": start, "least_start_cpu_s": least_start, "times_start": least / least_start}


def parts(path: Path) -> dict[str, float]:
    """CPU milliseconds without start: reading, the whole analysis, one what-if of a pass, and one replayed by plain loops."""
    from lurcher.ingest.op_trace_read import read_trace
    from lurcher.localize.whatif import analyse
    from lurcher.localize.whatif_measures import MOST_ALONE, measure

    trace, read_s = timed(lambda: read_trace(path))
    analysis, alone_s = timed(lambda: analyse(trace))
    found, pass_s = timed(lambda: measure(analysis.dense, analysis.graph, analysis.order, analysis.times))
    replicas, stages = found.only_worker_s.shape[:2]
    number = 3 + 2 * (len(found.types) + stages) + replicas + replicas * stages + min(replicas * stages, MOST_ALONE)
    _, plain_s = timed(lambda: whatif_made.plain_replay(analysis.graph, analysis.times.real_s))
    return {"read_ms": 1e3 * read_s, "alone_ms": 1e3 * alone_s, "what_ifs": number, "one_ms": 1e3 * pass_s / number, "plain_ms": 1e3 * plain_s}


def scaled(stages: int, replicas: int, microbatches: int) -> dict[str, Any]:
    """One step of a made-up job, written to a file and analysed by a process of its own; worker dp1/stage1 is 1.5 times slow."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.parquet"
        rows = write_made(path, stages, replicas, microbatches)
        verdict, cost = in_process([*COMMAND, str(path)])
    events = json.loads(verdict)["events"]
    named = [suspect["component"]["id"] for event in events if event["kind"] == "fail_slow" for suspect in event["suspects"]]
    row = {"trace": f"pp{stages} dp{replicas} m{microbatches}", "rows": rows, "named": ",".join(named), **cost}
    show(row)
    return row


def write_made(path: Path, stages: int, replicas: int, microbatches: int) -> int:
    """In a process of its own, so that its memory is not inherited by what is measured."""
    code = "import sys,whatif_made as m;p,*n=sys.argv[1:];print(m.write(p,m.made_trace(*map(int,n),slow={(1,1):1.5})))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), *map(str, (stages, replicas, microbatches))],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    return int(done.stdout)


def in_process(command: list[str], cwd: Path | None = None) -> tuple[bytes, dict[str, float]]:
    """Output, and the wall and CPU seconds and peak megabytes of a process: of its own, told by a small one between."""
    begin = time.monotonic()
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    kept["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir()) / "whatif-bench-pycache")
    wrapped = [sys.executable, "-c", WATCHER, *command]
    done = subprocess.run(wrapped, capture_output=True, timeout=DEADLINE_S, check=False, cwd=cwd, env=kept)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
    cpu_s, peak_kb = done.stderr.split()[-2:]
    return done.stdout, {"wall_s": time.monotonic() - begin, "cpu_s": float(cpu_s), "peak_mb": int(peak_kb) / 1024}


def timed(work: Any) -> tuple[Any, float]:
    """The result and the median CPU seconds of three goes."""
    spent = []
    for _ in range(3):
        begin = time.process_time()
        result = work()
        spent.append(time.process_time() - begin)
    return result, float(np.median(spent))


def show(row: dict[str, Any]) -> None:
    """One line."""
    print("  ".join(f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
