"""What peer copies cost: seconds at the border, share of the training, memory.

    python bench/copies.py              the demo's job, and one with more state (about a minute)
    python bench/copies.py --json FILE  also write the rows

Each rank keeps its state and sends it to its holder after every second iteration; the share is that of `run.copy_every = 10`.
The slowest rank counts: the others wait for it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from torch.distributed import TCPStore

from lurcher.clock import SystemClock
from lurcher.config import JobConfig, LayoutSection, ModelSection, PaceSection, layout_of, settled
from lurcher.model.pace import Pace
from lurcher.probe.recorder import Recorder
from lurcher.runtime.copies import choose_holders
from lurcher.runtime.engine import Engine
from lurcher.runtime.instruments import NullDevice
from lurcher.runtime.run_delay import RunDelay
from tables import Row, show

EVERY = 10
MEASURED_EVERY = 2
NUM_COPIES = 8
WAIT_S = 60.0
JOBS = {
    "demo": JobConfig(),
    "250 MB": JobConfig(
        layout=LayoutSection(num_microbatches=4),
        model=ModelSection(num_layers=4, hidden=512, num_heads=16, num_kv_heads=8, ffn_blocks=8, ffn_block_size=160, seq_len=32),
        pace=PaceSection(kind="none"),
    ),
}


def main() -> int:
    """Run the jobs and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--job", choices=JOBS, action="append", help="these only")
    asked = parser.parse_args()
    rows = [_row(name, settled(config)) for name, config in JOBS.items() if name in (asked.job or JOBS)]
    show(Console(), f"copies every {EVERY} iterations", rows)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))
    return 0


def _row(name: str, config: JobConfig) -> Row:
    layout = layout_of(config)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "lurcher.runtime.engine"])
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=WAIT_S))
    pipes, processes = [], []
    for rank in layout.ranks:
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=_work, args=(rank, config, store.port, theirs), daemon=True))
        processes[-1].start()
        pipes.append(ours)
    found = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    copies = [max(times) for times in zip(*(copy_s for copy_s, *_ in found), strict=True)]
    cpu_s, iteration_s = (median(median(numbers[place]) for numbers in found) for place in (1, 2))
    state_bytes, copy_bytes = ([numbers[place] for numbers in found] for place in (3, 4))
    return {
        "job": name,
        "ranks": len(found),
        "state, MB": sum(state_bytes) / 1e6,
        "iteration, s": iteration_s,
        "copy, ms": 1e3 * median(copies),
        "worst, ms": 1e3 * max(copies),
        "CPU, ms": 1e3 * cpu_s,
        "share": median(copies) / (EVERY * iteration_s),
        "memory, MB a rank": max(copy_bytes) / 1e6,
        "of its state": sum(copy_bytes) / sum(state_bytes),
    }


def _work(rank: int, config: JobConfig, port: int, pipe: Connection) -> None:
    """One rank: seconds and CPU seconds of each copy, seconds of each iteration, bytes of its state, bytes that copies take."""
    torch.set_num_threads(1)
    layout = layout_of(config)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=WAIT_S))
    emulated = config.pace.kind == "emulated"
    device = Pace(config.pace, rank, config.job.seed, (), SystemClock(), RunDelay()) if emulated else NullDevice()
    engine = Engine(config, layout, rank, store, Recorder(rank), device, lambda *_: None, WAIT_S)
    holders = choose_holders(layout, dict.fromkeys(layout.members, "here"))
    copy_s, cpu_s, iteration_s = [], [], []
    for iteration in range(MEASURED_EVERY * NUM_COPIES):
        begin = time.monotonic()
        engine.compute(iteration)
        engine.step(iteration)
        iteration_s.append(time.monotonic() - begin)
        if (iteration + 1) % MEASURED_EVERY == 0:
            begin, cpu_begin = time.monotonic(), time.process_time()
            engine.keep_copy(iteration + 1, holders)
            cpu_s.append(time.process_time() - cpu_begin)
            copy_s.append(time.monotonic() - begin)  # beginning included: the ranks come to a border within a moment
    state_bytes = sum(value.numel() * value.element_size() for name, value in engine.state().items() if not name.startswith("grad/"))
    pipe.send((copy_s, cpu_s, iteration_s, state_bytes, engine.copy_bytes))
    engine.close()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
