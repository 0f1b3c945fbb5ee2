"""Formats whose lines carry a rate of work and a time stamp, and no duration: samples or tokens per second, an iteration a line."""

from __future__ import annotations

import re

from lurcher.ingest.line_format import Columns, LineFormat, seconds_from_rate, stamp_s
from lurcher.ingest.quantity import quantity
from lurcher.ingest.series import Series


def rate_format(name: str, work: str, marker: bytes, start: re.Pattern[bytes], line: re.Pattern[str], note: str = "") -> LineFormat:
    """The format of such lines. `line` finds the iteration and the rate, its two groups, in a line without white space; the rate is in `work` per
    second. `note`: a sentence on what the rate is."""

    def parse(packed: str) -> tuple[int, tuple[float, ...]] | None:
        found = line.search(packed)
        rate = quantity(found[2]) if found else None
        return None if found is None or rate is None else (int(found[1]), (rate, stamp_s(packed)))

    def finish(series: Series) -> Columns:
        columns = seconds_from_rate(series, "rate", work)
        return columns._replace(notes=(note, *columns.notes)) if note else columns

    return LineFormat(name=name, marker=marker, start=start, names=("rate", "stamp_s"), parse=parse, finish=finish)
