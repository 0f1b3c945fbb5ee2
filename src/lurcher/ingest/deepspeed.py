"""DeepSpeed's throughput timer: `epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=25.02, CurrSamplesPerSec=25.70, MemAllocated=...`.

Format: deepspeedai/DeepSpeed, deepspeed/utils/timer.py, `ThroughputTimer.stop`; older lines begin `0/20, RunningAvg...`.
"""

from __future__ import annotations

import re

from lurcher.ingest.line_format import Columns, LineFormat, seconds_from_rate, stamp_s
from lurcher.ingest.quantity import quantity
from lurcher.ingest.series import Series

_LINE = re.compile(r"(?:global_step=|\d/)(\d{1,15}),RunningAvgSamplesPerSec=[^,]*,CurrSamplesPerSec=([^,]*),")


def deepspeed() -> LineFormat:
    """The format; the current rate is that of the one iteration before the line, the running mean hides a change."""
    return LineFormat(
        name="deepspeed",
        marker=b"timer.py:",
        start=re.compile(rb"timer\.py:\d+:stop\]"),
        names=("samples_per_s", "stamp_s"),
        parse=_parse,
        finish=_finish,
    )


def _parse(packed: str) -> tuple[int, tuple[float, ...]] | None:
    line = _LINE.search(packed)
    rate = quantity(line[2]) if line else None
    return None if line is None or rate is None else (int(line[1]), (rate, stamp_s(packed)))


def _finish(series: Series) -> Columns:
    columns = seconds_from_rate(series, "samples_per_s", "samples")
    used = "DeepSpeed prints a running mean, which hides a change: the current rate, of one iteration a line, was used"
    return columns._replace(notes=(used, *columns.notes))
