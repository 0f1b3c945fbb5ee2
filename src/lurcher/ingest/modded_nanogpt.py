"""modded-nanogpt: `step:1980/20344 train_loss:3.1142 train_time:3401139ms step_avg:1726.47ms`.

Format: KellerJordan/modded-nanogpt, train_gpt.py. `train_time` runs on from the start without evaluations; `step_avg` is its mean and hides a change.
"""

from __future__ import annotations

import re

import numpy as np

from lurcher.ingest.line_format import Columns, LineFormat
from lurcher.ingest.quantity import UNITS_S, quantity
from lurcher.ingest.series import Series

_LINE = re.compile(r"step:(\d{1,15})/\d+(.*?)train_time:([\d.]+)(ms|s)step_avg:")


def modded_nanogpt() -> LineFormat:
    """The format; lines of an evaluation repeat the clock of the step before and are left out."""
    return LineFormat(
        name="modded-nanogpt",
        marker=b"step:",
        start=re.compile(rb"(?<![A-Za-z_])step:\d+/\d+(?!.*val_)"),
        names=("clock_s", "resolution_s"),
        parse=_parse,
        finish=_finish,
    )


def _parse(packed: str) -> tuple[int, tuple[float, ...]] | None:
    line = _LINE.search(packed)
    value = quantity(line[3]) if line else None
    if line is None or value is None or "val_" in line[2]:
        return None
    _, _, decimals = line[3].partition(".")
    unit = UNITS_S[line[4]]
    return int(line[1]), (value * unit, unit * 10.0 ** -len(decimals))


def _finish(series: Series) -> Columns:
    """Difference of the clock to the line before, per step; unknown where there is none or the clock was set back."""
    index, clock = series.index, series.column("clock_s")
    duration = np.full(len(index), np.nan)
    steps, elapsed = np.diff(index), np.diff(clock)
    good = (steps > 0) & (elapsed > 0)
    duration[1:][good] = elapsed[good] / steps[good]
    if len(index) and index[0] == 1:
        duration[0] = clock[0]  # the clock starts with the first step
    notes = [
        f"durations are differences of a running clock that is printed to {float(np.max(series.column('resolution_s'))):g} s: each is known to that much"
    ]
    if (steps > 1).any():
        notes.append(f"{int((steps > 1).sum())} lines stand for more than one step: their duration is the mean")
    set_back = (elapsed < 0) & (steps > 0)
    if set_back.any():
        notes.append(f"the clock was set back {int(set_back.sum())} times (first at iteration {int(index[1:][set_back][0])})")
    return Columns({"duration_s": duration}, tuple(notes))
