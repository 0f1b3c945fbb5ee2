"""DeepSpeed's throughput timer: `epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=25.02, CurrSamplesPerSec=25.70, MemAllocated=...`.

Format: deepspeedai/DeepSpeed, deepspeed/utils/timer.py, `ThroughputTimer.stop`; older lines begin `0/20, RunningAvg...`.
"""

from __future__ import annotations

import re

from lurcher.ingest.line_format import LineFormat
from lurcher.ingest.rate_format import rate_format

_LINE = re.compile(r"(?:global_step=|\d/)(\d{1,15}),RunningAvgSamplesPerSec=[^,]*,CurrSamplesPerSec=([^,]*),")
_USED = "DeepSpeed prints a running mean, which hides a change: the current rate, of one iteration a line, was used"


def deepspeed() -> LineFormat:
    """The format; the current rate is that of the one iteration before the line."""
    return rate_format("deepspeed", "samples", b"timer.py:", re.compile(rb"timer\.py:\d+:stop\]"), _LINE, _USED)
