"""Lingua: `step: 10  acc: 0  loss: 2.1  grad: 1.0e+00  flops: 4e+14  wps: 1.2e+04  iter: 0.8123  data: 0.0012  lr: ...`.

Format: facebookresearch/lingua, apps/main/train.py. `iter` is timed on the device after the batch was loaded, `data` is the loading before it.
"""

from __future__ import annotations

import re

from lurcher.ingest.line_format import Columns, LineFormat
from lurcher.ingest.quantity import quantity
from lurcher.ingest.series import Series

_LINE = re.compile(r"step:(\d{1,15})acc:\d+.*?wps:[^:]*?iter:([^:]+?)data:([^:]+?)lr:")


def lingua() -> LineFormat:
    """The format; seconds of the one iteration before the line."""
    return LineFormat(
        name="lingua",
        marker=b" acc:",
        start=re.compile(rb"(?<![A-Za-z_])step:\s+\d+\s+acc:"),
        names=("iter_s", "input_s"),
        parse=_parse,
        finish=_finish,
    )


def _parse(packed: str) -> tuple[int, tuple[float, ...]] | None:
    line = _LINE.search(packed)
    if line is None:
        return None
    elapsed, loading = quantity(line[2]), quantity(line[3])
    return None if elapsed is None or loading is None else (int(line[1]), (elapsed, loading))


def _finish(series: Series) -> Columns:
    loading = series.column("input_s")
    note = "Lingua times the step and the loading of its batch apart: a duration is their sum"
    return Columns({"duration_s": series.column("iter_s") + loading, "input_s": loading}, (note,))
