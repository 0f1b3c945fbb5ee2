"""A run directory of lurcher's own: its iterations as they were recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lurcher.errors import UserError
from lurcher.ingest.log import Log
from lurcher.runlog import RunReader


def read_run(path: Path) -> Log:
    """The Log of a run directory, finished or still growing; raises UserError where it holds no iteration yet or cannot be read."""
    reader = RunReader(path)
    rows = reader.iterations()
    if not len(rows):
        raise UserError(f"{path} holds no iterations yet; wait until the run has written some")
    known = {"duration_s", "rank", "num_tokens", "sum_len_sq"}
    for name in ("busy_s", "wait_s", "input_s", "host_s", "expected_s"):
        if np.isfinite(rows[name]).any():
            known.add(name)
    if any(np.isfinite(rows[name]).any() for name in ("transfer_tp_s", "transfer_dp_s", "transfer_pp_s", "transfer_world_s")):
        known.add("transfer_s")
    rows.setflags(write=False)
    notes = ("device time was emulated in this run",) if reader.header.emulated else ()
    return Log(str(path), "lurcher", rows, frozenset(known), num_ranks=max(len(np.unique(rows["rank"])), 1), notes=notes)
