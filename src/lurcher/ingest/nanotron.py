"""nanotron: `iteration: 10 / 100 | consumed_tokens: 2.6M | time_per_iteration_ms: 412 | tokens_per_sec: 639K | ...`.

Format: huggingface/nanotron, src/nanotron/trainer.py, with three significant digits (src/nanotron/logging, `human_format`).
"""

from __future__ import annotations

import re

from lurcher.ingest.line_format import Columns, LineFormat
from lurcher.ingest.quantity import quantity
from lurcher.ingest.series import Series

_ITERATION = re.compile(r"iteration:(\d{1,15})/")
_ELAPSED = re.compile(r"time_per_iteration_ms:([^|]*)\|")


def nanotron() -> LineFormat:
    """The format; milliseconds with a suffix K from 1000 on."""
    return LineFormat(
        name="nanotron",
        marker=b"iteration:",
        start=re.compile(rb"(?<![A-Za-z_])iteration:\s*\d+\s*/"),
        names=("duration_s",),
        parse=_parse,
        finish=_finish,
    )


def _parse(packed: str) -> tuple[int, tuple[float, ...]] | None:
    iteration, elapsed = _ITERATION.search(packed), _ELAPSED.search(packed)
    value = quantity(elapsed[1]) if elapsed else None
    return None if iteration is None or value is None else (int(iteration[1]), (value * 1e-3,))


def _finish(series: Series) -> Columns:
    return Columns({"duration_s": series.column("duration_s")}, ("nanotron prints three significant digits: a duration is known to 0.5 % at best",))
