"""nanochat: `step 00010/05000 (0.20%) | loss: 3.1 | ... | dt: 412.30ms | tok/sec: 639,123 | ...`; build-nanogpt prints the same key.

Format: karpathy/nanochat, scripts/base_train.py. One line an iteration; evaluations lie outside `dt`.
"""

from __future__ import annotations

import re

from lurcher.ingest.line_format import Columns, LineFormat
from lurcher.ingest.quantity import UNITS_S, quantity
from lurcher.ingest.series import Series

_STEP = re.compile(r"[Ss]tep(\d{1,15})(?:/\d+)?(?:\([\d.]+%\))?\|")
_ELAPSED = re.compile(r"\|dt:([^|a-z]*)(ms|s)\|")


def nanochat() -> LineFormat:
    """The format; `dt` carries its unit."""
    return LineFormat(
        name="nanochat",
        marker=b"tep ",
        start=re.compile(rb"(?<![A-Za-z_])[Ss]tep\s+\d+(?:/\d+)?\s+(?:\(|\|)"),
        names=("duration_s",),
        parse=_parse,
        finish=_finish,
    )


def _parse(packed: str) -> tuple[int, tuple[float, ...]] | None:
    step, elapsed = _STEP.search(packed), _ELAPSED.search(packed)
    value = quantity(elapsed[1]) if elapsed else None
    return None if step is None or elapsed is None or value is None else (int(step[1]), (value * UNITS_S[elapsed[2]],))


def _finish(series: Series) -> Columns:
    return Columns({"duration_s": series.column("duration_s")})
