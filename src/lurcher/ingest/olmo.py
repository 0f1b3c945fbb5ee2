"""OLMo and OLMo-core: a head `[step=10/739328,...]` and below it one `name=value` a line, `throughput/device/BPS=0.21` among them.

Formats: allenai/OLMo, olmo/train.py (`throughput/device/batches_per_second`, over a window of steps); allenai/OLMo-core,
callbacks/speed_monitor.py (`throughput/device/BPS`, of the step; `data loading (%)`).
"""

from __future__ import annotations

import re

import numpy as np

from lurcher.ingest.line_format import Columns, LineFormat
from lurcher.ingest.quantity import quantity
from lurcher.ingest.series import Series

_STEP = re.compile(r"\[step=(\d{1,15})[/,\]]")
_CURRENT = re.compile(r"\nthroughput/device/BPS=([^\n]+)\n")
_WINDOW = re.compile(r"\nthroughput/device/batches_per_second=([^\n]+)\n")
_LOADING = re.compile(r"\nthroughput/device/dataloading\((%|s)\)=([^\n]+)\n")


def olmo() -> LineFormat:
    """The format; the block of a step ends where the next one begins."""
    return LineFormat(
        name="olmo",
        marker=b"[step=",
        start=re.compile(rb"\[step=\d+"),
        names=("duration_s", "input_share", "input_s", "is_window"),
        parse=_parse,
        finish=_finish,
        max_lines=1000,
        block=True,
    )


def _parse(packed: str) -> tuple[int, tuple[float, ...]] | None:
    step = _STEP.search(packed)
    current = _CURRENT.search(packed)
    rate = current or _WINDOW.search(packed)
    value = quantity(rate[1]) if rate else None
    if step is None or value is None:
        return None
    loading = _LOADING.search(packed)
    amount = quantity(loading[2]) if loading else None
    nan = float("nan")
    share = amount / 100 if amount is not None and loading is not None and loading[1] == "%" else nan
    seconds = amount if amount is not None and loading is not None and loading[1] == "s" else nan
    return int(step[1]), (1.0 / value if value > 0 else nan, share, seconds, 0.0 if current else 1.0)


def _finish(series: Series) -> Columns:
    duration, share, seconds = series.column("duration_s"), series.column("input_share"), series.column("input_s")
    values = {"duration_s": duration}
    loading = np.where(np.isfinite(seconds), seconds, share * duration)
    if np.isfinite(loading).any():
        values["input_s"] = loading
    window = "OLMo prints batches per second over a window of steps: a change shows over the length of the window, not at once"
    return Columns(values, (window,) if series.column("is_window").any() else ())
