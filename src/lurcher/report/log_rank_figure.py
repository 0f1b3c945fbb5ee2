"""The chart of who: the suspects' own time beside that of the other ranks, around the event."""

from __future__ import annotations

import numpy as np

from lurcher.report.buckets import buckets
from lurcher.report.chart import Figure, axis, base_layout, numbers
from lurcher.report.load import median_of
from lurcher.report.log_facts import LogFacts, places

COLUMNS = {
    "compute": ("busy_s", "own work"),
    "input": ("input_s", "input"),
    "host": ("host_s", "host"),
    "communication": ("transfer_world_s", "transfer"),
}
"""Cause -> the column that told it, and its name."""
COLOURS = ("--c-slow", "--c-proof", "--c-mitigated", "--c-input")
BEFORE, MOST_CELLS = 200, 4_000_000
"""Iterations shown before and after the event at least, and values that are looked at; of more, every second, third... iteration."""


def log_rank_figure(facts: LogFacts) -> Figure | None:
    """Suspected ranks against the median and the middle 80 % of the others; None where no rank is suspected, or there are no others."""
    event = facts.event
    suspects = [r for s in event.suspects for r in s.component.ranks][: len(COLOURS)] if event else []
    if event is None or not suspects or facts.log.num_ranks < 2:
        return None
    column, name = COLUMNS.get(event.suspects[0].cause, ("duration_s", "duration"))
    column, name = (column, name) if np.isfinite(facts.log.rows[column]).any() else ("duration_s", "duration")
    index, ranks, table = _around(facts, column, places(facts.series.index, event))
    others = np.sort(np.where(np.isin(ranks, suspects), np.nan, table), axis=1)  # NaN last
    low, high = (_quantile(others, q) for q in (0.1, 0.9))
    x = index.tolist()
    quiet = {"type": "scatter", "mode": "lines", "x": x, "line": {"width": 0, "color": "--c-wait"}, "hoverinfo": "skip"}
    data = [
        {**quiet, "name": "low", "y": numbers(low, 6), "showlegend": False},
        {**quiet, "name": "middle 80 % of the others", "y": numbers(high, 6), "fill": "tonexty", "fillcolor": "--c-range"},
        _line("median of the others", "--c-soft", index, median_of(others)),
        *(
            _line(f"rank {r}", colour, index, table[:, ranks == r].ravel())
            for r, colour in zip(suspects, COLOURS, strict=False)
            if (ranks == r).any()
        ),
    ]
    unit = "time, no unit known" if facts.log.relative else "seconds"
    return {"data": data, "layout": base_layout(330, xaxis=axis("iteration"), yaxis=axis(f"{name}, {unit}", rangemode="tozero"))}


def _line(name: str, colour: str, index: np.ndarray, values: np.ndarray) -> Figure:
    seen = buckets(index, values)
    hover = f"iteration %{{x}}<br>{name} %{{y:.4g}}<extra></extra>"
    look = {"line": {"color": colour, "width": 1.8}, "hovertemplate": hover}
    return {"type": "scatter", "mode": "lines", "name": name, "x": seen.index.tolist(), "y": numbers(seen.middle, 6), **look}


def _around(facts: LogFacts, column: str, span: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Iterations, ranks, and the column as iterations x ranks, NaN where a rank has no row."""
    margin = max(BEFORE, (span.stop - span.start) // 2)
    index = facts.series.index[max(0, span.start - margin) : span.stop + margin]
    index = index[:: -(-len(index) * facts.log.num_ranks // MOST_CELLS)]
    rows = facts.log.rows
    rows = rows[np.searchsorted(rows["index"], index[0]) : np.searchsorted(rows["index"], index[-1], side="right")]
    rows = rows[np.isin(rows["index"], index)]
    ranks, place = np.unique(rows["rank"], return_inverse=True)
    table = np.full((len(index), len(ranks)), np.nan)
    table[np.searchsorted(index, rows["index"]), place] = rows[column]
    return index, ranks, table


def _quantile(ordered: np.ndarray, q: float) -> np.ndarray:
    """Of each row, sorted with NaN last, the value that the share `q` of the known ones lies below."""
    known = np.isfinite(ordered).sum(axis=1)
    at = np.maximum(0, np.round(q * (known - 1))).astype(np.int64)
    return np.where(known > 0, ordered[np.arange(len(ordered)), at], np.nan)
