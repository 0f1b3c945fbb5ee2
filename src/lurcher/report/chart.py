"""What the charts share: plotly figures as plain data. Colours are names such as `--c-slow`; the page's script gives them the theme's values."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from lurcher.report.load import Facts
from lurcher.report.words import whereabouts

Figure = dict[str, Any]
MAX_RANKS = 16
"""Ranks that a chart with a row for each can hold."""


def numbers(values: np.ndarray, digits: int = 4) -> list[float | None]:
    """For JSON: rounded, and None where there is no figure."""
    return [round(float(v), digits) if np.isfinite(v) else None for v in values]


def base_layout(height: int, **more: Any) -> Figure:
    """Size, margins, colours and legend; `more` goes over them."""
    return {
        "height": height,
        "margin": {"l": 52, "r": 16, "t": 20, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "--c-soft"},
        "hoverlabel": {"bgcolor": "--c-card", "bordercolor": "--c-line", "font": {"color": "--c-text", "size": 12}, "align": "left"},
        "legend": legend(-0.16),
        "hovermode": "closest",
        **more,
    }


def legend(y: float) -> Figure:
    """A legend below the chart; `y` as a fraction of the plot's height, negative."""
    return {"orientation": "h", "x": 0, "y": y, "yanchor": "top", "font": {"color": "--c-soft"}, "traceorder": "normal"}


def axis(title: str = "", **more: Any) -> Figure:
    """A quiet axis."""
    label = {"text": title, "standoff": 8, "font": {"size": 12}}
    return {"title": label, "gridcolor": "--c-grid", "linecolor": "--c-line", "zeroline": False, "ticks": "", **more}


def upright(x: float, y0: float, y1: float, yref: str, colour: str, **more: Any) -> Figure:
    """A dotted vertical line."""
    return {"type": "line", "x0": x, "x1": x, "yref": yref, "y0": y0, "y1": y1, "line": {"color": colour, "width": 1.2, "dash": "dot"}, **more}


def rank_ticks(ranks: list[int], facts: Facts) -> list[str]:
    """Labels of a rank axis; a suspect stands out."""
    return [f"<b>▶ {r}</b>" if r in facts.suspects else str(r) for r in ranks]


def rank_names(ranks: list[int], facts: Facts) -> dict[int, str]:
    """Rank, host and device for hovering, escaped: plotly's labels understand HTML."""
    return {r: escape(f"rank {r}, {whereabouts(facts.places.get(r))}") for r in ranks}
