"""torchtitan: `step: 10  loss: 8.1  grad_norm: 1.2  memory: 41.20GiB(51.5%)  tps: 7,412  tflops: 389  mfu: 39.35%`, with or without colours.

Format: pytorch/torchtitan, torchtitan/components/metrics.py; `wps` until 2024. Lines of validation are left out.
"""

from __future__ import annotations

import re

from lurcher.ingest.line_format import LineFormat
from lurcher.ingest.rate_format import rate_format

_START = re.compile(rb"(?<!validate )(?<![A-Za-z_])step:\s+\d+(?!\s*/|\d)")
_LINE = re.compile(r"(?<!validate)step:(\d{1,15})loss:.*?memory:.*?(?:tps|wps):([^A-Za-z:]+)(?:tflops|mfu):")


def torchtitan() -> LineFormat:
    """The format; tokens per second and device are a mean over the log interval."""
    return rate_format("torchtitan", "tokens per device", b"step: ", _START, _LINE)
