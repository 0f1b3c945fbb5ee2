"""The chart of a log: its series, the level it would have had, and its events."""

from __future__ import annotations

import numpy as np

from lurcher.report.buckets import Buckets, buckets
from lurcher.report.chart import Figure, axis, base_layout, numbers
from lurcher.report.iteration_figure import DOTTED_ITERATIONS, MARK_COLOURS, marked
from lurcher.report.load import Series
from lurcher.report.log_facts import LogFacts
from lurcher.report.timeline import Mark

MARK_KINDS = {"fail_slow": "onset", "level_shift": "suspicion", "drift": "validation", "burst": "suspicion", "restart": "revert"}
"""Kind of an event -> kind of its mark, which has its colour; others stop the job."""
SHADE = 0.13
MARGIN = 0.3
"""Of the height of what is drawn, kept free above and below."""


def log_marks(facts: LogFacts) -> list[Mark]:
    """A mark for every event that is drawn."""
    return [
        Mark(event.onset_iteration or 0, MARK_KINDS.get(event.kind, "fault"), facts.name(event), facts.what(event))
        for event in facts.drawn
        if event.onset_iteration is not None
    ]


def log_figure(facts: LogFacts, marks: list[Mark]) -> Figure:
    """Duration over iterations, the level without the events as a dashed step, and every event shaded and numbered."""
    series = facts.series
    lines = [shade for event in facts.drawn if (shade := _shade(facts, event.onset_iteration, event.end_iteration, event.kind))]
    unit = "time, no unit known" if facts.log.relative else "seconds"
    layout = base_layout(390, xaxis=axis("iteration"), yaxis=axis(unit, range=visible_range(series)))
    return {"data": series_lines(series), "layout": marked(layout, marks, series.index, lines)}


def series_lines(series: Series) -> list[Figure]:
    """The series and its level; of a long one the range of each bucket, and its middle."""
    seen, level = buckets(series.index, series.observed_s), buckets(series.index, series.expected_s)
    x = seen.index.tolist()
    dashed = {
        "name": "level without the events",
        "y": numbers(level.middle, 6),
        "line": {"color": "--c-mitigated", "width": 2, "dash": "dash", "shape": "hv"},
    }
    mode = "lines+markers" if len(x) <= DOTTED_ITERATIONS else "lines"
    name = "observed" if seen.size == 1 else f"median of {seen.size} iterations"
    line = {"name": name, "mode": mode, "y": numbers(seen.middle, 6), "line": {"color": "--c-busy", "width": 1.6}, "marker": {"size": 4}}
    traces = [*_band(seen), line, dashed]
    hover = "iteration %{{x}}<br>{} %{{y:.4g}}<extra></extra>"
    return [{"type": "scatter", "mode": "lines", "x": x, "hovertemplate": hover.format(trace["name"]), **trace} for trace in traces]


def _band(seen: Buckets) -> list[Figure]:
    if seen.size == 1:
        return []
    quiet = {"line": {"width": 0, "color": "--c-busy"}, "hoverinfo": "skip", "hovertemplate": None}
    low = {"name": "low", "y": numbers(seen.low, 6), "showlegend": False, **quiet}
    return [low, {"name": f"range of {seen.size} iterations", "y": numbers(seen.high, 6), "fill": "tonexty", "fillcolor": "--c-band", **quiet}]


def visible_range(series: Series) -> list[float]:
    """The part of the axis where the levels are, so that 5 % can be seen; single spikes lie outside."""
    known = series.observed_s[np.isfinite(series.observed_s)]
    levels = series.expected_s[np.isfinite(series.expected_s)]
    if not len(known):
        return [0.0, 1.0]
    low, high = (float(np.percentile(known, q)) for q in (1, 99))
    low, high = min(low, float(levels.min(initial=low))), max(high, float(levels.max(initial=high)))
    margin = MARGIN * max(high - low, 0.02 * high)
    return [float(f"{max(0.0, low - margin):.6g}"), float(f"{high + margin:.6g}")]


def _shade(facts: LogFacts, first: int | None, last: int | None, kind: str) -> Figure | None:
    if first is None or not len(facts.series.index):
        return None
    end = facts.series.index[-1] if last is None else last
    half = facts.log.stride / 2
    place = {"x0": first - half, "x1": float(end) + half, "yref": "paper", "y0": 0, "y1": 1}
    colour = MARK_COLOURS[MARK_KINDS.get(kind, "fault")]
    return {"type": "rect", **place, "fillcolor": colour, "opacity": SHADE, "line": {"width": 0}, "layer": "below"}
