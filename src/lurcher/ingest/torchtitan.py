"""torchtitan: `step: 10  loss: 8.1  grad_norm: 1.2  memory: 41.20GiB(51.5%)  tps: 7,412  tflops: 389  mfu: 39.35%`, with or without colours.

Format: pytorch/torchtitan, torchtitan/components/metrics.py; `wps` until 2024. Lines of validation are left out.
"""

from __future__ import annotations

import re

from lurcher.ingest.line_format import Columns, LineFormat, seconds_from_rate, stamp_s
from lurcher.ingest.quantity import quantity
from lurcher.ingest.series import Series

_LINE = re.compile(r"(?<!validate)step:(\d{1,15})loss:.*?memory:.*?(?:tps|wps):([^A-Za-z:]+)(?:tflops|mfu):")


def torchtitan() -> LineFormat:
    """The format; tokens per second and device are a mean over the log interval."""
    return LineFormat(
        name="torchtitan",
        marker=b"step: ",
        start=re.compile(rb"(?<!validate )(?<![A-Za-z_])step:\s+\d+(?!\s*/|\d)"),
        names=("tokens_per_s", "stamp_s"),
        parse=_parse,
        finish=_finish,
    )


def _parse(packed: str) -> tuple[int, tuple[float, ...]] | None:
    line = _LINE.search(packed)
    rate = quantity(line[2]) if line else None
    return None if line is None or rate is None else (int(line[1]), (rate, stamp_s(packed)))


def _finish(series: Series) -> Columns:
    return seconds_from_rate(series, "tokens_per_s", "tokens per device")
