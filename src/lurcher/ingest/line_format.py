"""What a format of log lines is: how a line of it begins, what it carries, and how its numbers become seconds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lurcher.ingest.series import Series

Floats = npt.NDArray[np.float64]


class Columns(NamedTuple):
    """Columns under the names of records.ITERATION (`duration_s` always), sentences on what they mean, and whether durations are relative."""

    values: Mapping[str, Floats]
    notes: tuple[str, ...] = ()
    relative: bool = False


@dataclass(frozen=True)
class LineFormat:
    """One format.

    `start` finds, in a physical line without colours, the beginning of an iteration's line; it is tried only where `marker` is in the line, which
    is what makes large logs quick. `parse` gets the line WITHOUT any white space, so
    that a line which a terminal or a mail wrapped reads like the whole one; it returns the iteration and the values of `names`, or None while
    something is missing. Every number it takes must be ended by something, or a line cut inside the number would be read wrong.
    `finish` turns what was read into columns. A line may be wrapped into `max_lines` physical ones. Where `block` holds, a record is many
    lines `name=value` below a head: they are joined by line ends, and the record ends where no such line follows.
    `overlaps`: formats whose lines the same program prints too, and which yield to this one.
    """

    name: str
    marker: bytes
    start: re.Pattern[bytes]
    names: tuple[str, ...]
    parse: Callable[[str], tuple[int, tuple[float, ...]] | None]
    finish: Callable[[Series], Columns]
    max_lines: int = 9
    block: bool = False
    overlaps: frozenset[str] = frozenset()


_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)T?(\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?")


def stamp_s(packed: str) -> float:
    """The first date and time in a text without white space, in seconds; NaN without one. Only differences mean anything: no zone is known."""
    found = _STAMP.search(packed)
    if found is None:
        return float("nan")
    try:
        moment = datetime.fromisoformat(f"{found[1]}T{found[2]}").replace(tzinfo=UTC)
    except ValueError:
        return float("nan")
    return moment.timestamp() + (float(f"0.{found[3]}") if found[3] else 0.0)


MIN_INTERVALS = 4
"""Intervals between stamps below which no amount of work per iteration is derived from them."""


def work_per_iteration(series: Series, rate: Floats) -> float | None:
    """Samples or tokens of one iteration: the median of rate x (time between two lines) / (iterations between them); None where stamps do not tell.

    The median passes over checkpoints and evaluations, which lengthen single intervals. It needs stamps finer than the interval.
    """
    index, rank, stamp = series.index, series.rank, series.column("stamp_s")
    mine = rank == (rank[0] if len(rank) else 0)
    steps, elapsed = np.diff(index[mine]), np.diff(stamp[mine])
    with np.errstate(invalid="ignore"):
        good = (steps > 0) & (elapsed > 0) & np.isfinite(rate[mine][1:]) & (rate[mine][1:] > 0)
    if good.sum() < MIN_INTERVALS or good.sum() * 2 < len(steps):
        return None
    return float(np.median(rate[mine][1:][good] * elapsed[good] / steps[good]))


def seconds_from_rate(series: Series, name: str, work: str) -> Columns:
    """Durations from the rate column `name` in `work` per second; relative ones (seconds per unit of work) where the stamps do not give the scale."""
    rate = series.column(name)
    amount = work_per_iteration(series, rate)
    with np.errstate(divide="ignore", invalid="ignore"):
        duration = np.where(rate > 0, (1.0 if amount is None else amount) / rate, np.nan)
    if amount is None:
        note = f"the lines carry {work} per second but not how many an iteration takes: durations are seconds per one of {work}, and only ratios mean something"
    else:
        note = f"durations are {work} per iteration over {work} per second; {amount:.6g} per iteration were taken from the time stamps of the lines"
    return Columns({"duration_s": duration}, (note,), relative=amount is None)
