"""The chart of where every rank's time went, before, while slow and after the change."""

from __future__ import annotations

from typing import Any

import numpy as np

from lurcher.report.chart import MAX_RANKS, Figure, axis, base_layout, legend, numbers, rank_names, rank_ticks
from lurcher.report.load import Facts
from lurcher.report.ranks import Windows, ranks_to_draw, shares
from lurcher.report.words import seconds

PARTS = {
    "busy": ("own work", "--c-busy"),
    "transfer": ("transfer", "--c-transfer"),
    "input": ("input", "--c-input"),
    "wait": ("waiting for others", "--c-wait"),
}


def rank_figure(facts: Facts, compared: Windows) -> Figure:
    """A stack per rank and phase, all on one scale."""
    ranks = ranks_to_draw(facts.layout, facts.suspects, MAX_RANKS)
    names = rank_names(ranks, facts)
    count = max(1, len(compared.phases))
    pitch = 0.84 / count
    data: list[Figure] = []
    for p, window in enumerate(compared.phases):
        y = [i + (p - (count - 1) / 2) * pitch for i in range(len(ranks))]
        base = np.zeros(len(ranks))
        for part, values in shares(facts, window, ranks).items():
            if not any(values):
                continue
            hover = [f"{names[r]}<br>{window.name}: {PARTS[part][0]} {seconds(v)}" for r, v in zip(ranks, values, strict=True)]
            shown = not any(old.get("legendgroup") == part for old in data)
            data.append(
                {**_bar(part, shown), "y": y, "x": numbers(np.array(values)), "base": numbers(base), "width": pitch * 0.86, "customdata": hover}
            )
            base = base + values
        data.append(_labels(window.name, numbers(base), y))
    height = 78 + len(ranks) * (15 * count + 12)
    layout = base_layout(
        height,
        barmode="overlay",
        margin={"l": 48, "r": 70, "t": 8, "b": 70},
        legend=legend(-46 / (height - 78)),
        xaxis=axis("seconds an iteration (median)", rangemode="tozero"),
        yaxis=axis(
            "rank",
            tickvals=list(range(len(ranks))),
            ticktext=rank_ticks(ranks, facts),
            range=[len(ranks) - 0.5, -0.5],
            showgrid=False,
            fixedrange=True,
        ),
    )
    return {"data": data, "layout": layout}


def _bar(part: str, shown: bool) -> Figure:
    name, colour = PARTS[part]
    look = {"marker": {"color": colour, "line": {"width": 0}}, "hovertemplate": "%{customdata}<extra></extra>"}
    return {"type": "bar", "orientation": "h", "name": name, "legendgroup": part, "showlegend": shown, **look}


def _labels(text: str, x: list[Any], y: list[float]) -> Figure:
    look = {
        "textposition": "middle right",
        "textfont": {"size": 10, "color": "--c-soft"},
        "hoverinfo": "skip",
        "showlegend": False,
        "cliponaxis": False,
    }
    return {"type": "scatter", "mode": "text", "x": x, "y": y, "text": [f" {text}"] * len(y), **look}
