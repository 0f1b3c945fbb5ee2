"""The chart of iteration time, with its expectation and the moments that mattered."""

from __future__ import annotations

import numpy as np

from lurcher.report.chart import Figure, axis, base_layout, numbers, upright
from lurcher.report.load import Facts, Series
from lurcher.report.ranks import Window, Windows
from lurcher.report.timeline import Mark

MARK_COLOURS = {
    "onset": "--c-slow",
    "suspicion": "--c-warn",
    "confirmed": "--c-slow",
    "validation": "--c-proof",
    "change": "--c-mitigated",
    "over": "--c-healthy",
    "revert": "--c-healthy",
    "fault": "--c-slow",
}
BADGE_ROOM = 0.05
"""Least distance of two badges in one row, as a fraction of the chart's width."""
DOTTED_ITERATIONS = 300
"""Up to this many iterations each is drawn as a dot on the line."""


def iteration_figure(facts: Facts, marks: list[Mark], compared: Windows) -> Figure:
    """Iteration time over iterations with the expectation, the slow periods shaded and numbered marks above."""
    shades = [_shade(window) for window in compared.phases if facts.event and window.name in ("slow", "new layout")]
    layout = base_layout(390, xaxis=axis("iteration"), yaxis=axis("seconds", range=[0, _ceiling(facts.series)]))
    return {"data": _lines(facts.series), "layout": marked(layout, marks, facts.series.index, shades)}


def marked(layout: Figure, marks: list[Mark], index: np.ndarray, shapes: list[Figure]) -> Figure:
    """A chart's layout with `shapes`, and with a numbered badge above and a dotted line for every mark; it grows by the rows of badges it needs."""
    at = [mark.iteration for mark in marks]
    rows = badge_rows(at, BADGE_ROOM * max(1, int(np.ptp(index)))) if len(index) else [0] * len(at)
    heights = [1.02 + 0.075 * row for row in rows]
    room = 22 * max(rows, default=0)
    return {
        **layout,
        "height": layout["height"] + room,
        "margin": {"l": 52, "r": 16, "t": 40 + room, "b": 44},
        "shapes": shapes + [upright(m.iteration, 0, top, "paper", MARK_COLOURS[m.kind]) for m, top in zip(marks, heights, strict=True)],
        "annotations": [_badge(number, m, top) for number, (m, top) in enumerate(zip(marks, heights, strict=True), 1)],
    }


def badge_rows(at: list[int], room: float) -> list[int]:
    """A row for every badge, so that two in one row stand at least `room` apart; the lowest free row each."""
    last: list[float] = []
    rows = []
    for x in at:
        row = next((i for i, taken in enumerate(last) if x - taken >= room), len(last))
        last[row : row + 1] = [x]
        rows.append(row)
    return rows


def _lines(series: Series) -> list[Figure]:
    x = series.index.tolist()
    mode = "lines+markers" if len(x) <= DOTTED_ITERATIONS else "lines"
    expected = {"name": "expected", "mode": "lines", "y": numbers(series.expected_s), "line": {"color": "--c-soft", "width": 1.5, "dash": "dash"}}
    observed = {"name": "observed", "mode": mode, "y": numbers(series.observed_s), "line": {"color": "--c-busy", "width": 2}, "marker": {"size": 4}}
    hover = "iteration %{{x}}<br>{} %{{y:.3f}} s<extra></extra>"
    return [{"type": "scatter", "x": x, "hovertemplate": hover.format(trace["name"]), **trace} for trace in (expected, observed)]


def _badge(number: int, mark: Mark, top: float) -> Figure:
    return {
        "x": mark.iteration,
        "yref": "paper",
        "y": top,
        "yanchor": "bottom",
        "text": f"<b>{number}</b>",
        "showarrow": False,
        "bgcolor": MARK_COLOURS[mark.kind],
        "borderpad": 3,
        "font": {"color": "--c-onmark", "size": 11},
        "hovertext": f"{mark.title}, iteration {mark.iteration}",
    }


def _shade(window: Window) -> Figure:
    place = {"x0": window.first - 0.5, "x1": window.end - 0.5, "yref": "paper", "y0": 0, "y1": 1}
    colour = "--c-slow" if window.name == "slow" else "--c-mitigated"
    return {"type": "rect", **place, "fillcolor": colour, "opacity": 0.1, "line": {"width": 0}, "layer": "below"}


def _ceiling(series: Series) -> float:
    """Top of the axis: above everything but single spikes, such as the first iteration's start-up."""
    settled = np.concatenate([series.observed_s[3:] if len(series.index) > 6 else series.observed_s, series.expected_s])
    known = settled[np.isfinite(settled)]
    return round(1.12 * float(min(known.max(), 3 * np.percentile(known, 98))), 4) if len(known) else 1.0
