"""The pipeline of one iteration before, during and after, drawn above each other on one time scale."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from lurcher.report.chart import MAX_RANKS, Figure, axis, base_layout, legend, rank_names, rank_ticks, upright
from lurcher.report.load import Facts
from lurcher.report.pipeline import Bar, Panel
from lurcher.report.ranks import ranks_to_draw
from lurcher.report.words import seconds

KINDS = {
    "forward": ("forward", "--c-forward"),
    "backward": ("backward", "--c-backward"),
    "weight": ("weight gradient", "--c-input"),
    "wait": ("waiting in a collective", "--c-wait"),
    "receive": ("waiting for the pipeline", "--c-idle"),
    "transfer": ("transfer", "--c-transfer"),
    "other": ("optimizer, input", "--c-input"),
}
SLIVER = 0.0012
"""Bars below this fraction of the axis are a pixel wide and left out."""
NUMBERED = 0.014
"""Chunks above this fraction of the axis may carry their micro-batch's number, where it fits."""
ROW_PX, GAP_PX, BOTTOM_PX = 22, 44, 92


@dataclass(frozen=True)
class _Frame:
    """What all panels share: the ranks, their rows and names, the common time span in seconds."""

    ranks: list[int]
    rows: dict[int, float]
    names: dict[int, str]
    span_s: float

    @property
    def last_row(self) -> float:
        return max(self.rows.values())


def gantt_figure(found: list[Panel], facts: Facts) -> Figure:
    """All panels, so that lengths compare: a shorter picture is a faster iteration."""
    ranks = ranks_to_draw(facts.layout, facts.suspects, MAX_RANKS)
    frame = _Frame(ranks, row_positions(ranks, facts), rank_names(ranks, facts), 1.01 * max(one.length_s for one in found))
    body_px = ROW_PX * (frame.last_row + 1)
    area_px = len(found) * (body_px + GAP_PX)
    layout = base_layout(
        round(area_px + BOTTOM_PX),
        barmode="overlay",
        bargap=0,
        margin={"l": 48, "r": 12, "t": 0, "b": BOTTOM_PX},
        legend=legend(-50 / area_px),
        uniformtext={"minsize": 8, "mode": "hide"},
        annotations=[],
        shapes=[],
    )
    data: list[Figure] = []
    for i, one in enumerate(found):
        n = "" if i == 0 else str(i + 1)  # plotly's axes are x, x2, x3
        top = 1 - (i * (body_px + GAP_PX) + GAP_PX) / area_px
        last = i == len(found) - 1
        layout[f"xaxis{n}"] = axis("seconds since the iteration began" if last else "", anchor=f"y{n}", range=[0, frame.span_s], showticklabels=last)
        layout[f"xaxis{n}"] |= {"matches": "x"} if i else {}
        layout[f"yaxis{n}"] = _rank_axis(frame, facts, n, max(0.0, top - body_px / area_px), top)
        layout["annotations"].append(_title(one, top))
        layout["shapes"].append(upright(one.length_s, 0, 1, f"y{n} domain", "--c-text", xref=f"x{n}"))
        layout["shapes"] += [_outline(frame.rows[r], one.length_s, n) for r in ranks if r in facts.suspects]
        data += _traces(one, frame, n, shown={trace["legendgroup"] for trace in data})
    return {"data": data, "layout": layout}


def row_positions(ranks: list[int], facts: Facts) -> dict[int, float]:
    """A row for each rank, with some air between stages and more between replicas."""
    at = {r: (d, s) for d, s, stage in facts.layout.stages() for r in stage.ranks}
    rows = dict.fromkeys(ranks[:1], 0.0)
    for before, r in pairwise(ranks):
        rows[r] = rows[before] + 1.0 + (0.5 if at[before][0] != at[r][0] else 0.15 if at[before] != at[r] else 0.0)
    return rows


def _rank_axis(frame: _Frame, facts: Facts, n: str, bottom: float, top: float) -> Figure:
    ticks = {"tickvals": [frame.rows[r] for r in frame.ranks], "ticktext": rank_ticks(frame.ranks, facts)}
    return axis(
        "" if n else "rank", domain=[bottom, top], anchor=f"x{n}", range=[frame.last_row + 0.5, -0.5], showgrid=False, fixedrange=True, **ticks
    )


def _title(one: Panel, top: float) -> Figure:
    text = f"<b>{one.title}</b> – iteration {one.iteration}, {seconds(one.length_s)}"
    place = {"xref": "paper", "yref": "paper", "x": 0, "y": top, "xanchor": "left", "yanchor": "bottom"}
    return {"text": text, "showarrow": False, "font": {"color": "--c-text", "size": 13}, **place}


def _outline(row: float, length_s: float, n: str) -> Figure:
    place = {"xref": f"x{n}", "yref": f"y{n}", "x0": 0, "x1": length_s, "y0": row - 0.5, "y1": row + 0.5}
    return {"type": "rect", "line": {"color": "--c-slow", "width": 1.5}, **place}


def _traces(one: Panel, frame: _Frame, n: str, shown: set[str]) -> list[Figure]:
    traces = []
    long_enough = [bar for bar in one.bars if bar.end_s - bar.start_s >= SLIVER * frame.span_s]
    waits = {r: sorted(bar.start_s for bar in long_enough if bar.kind == "wait" and bar.rank == r) for r in frame.ranks}
    for kind, (name, colour) in KINDS.items():
        bars = [bar for bar in long_enough if bar.kind == kind]
        if not bars:
            continue
        edge = 0.0 if kind in ("wait", "transfer", "receive") else 0.6
        trace: Figure = {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "legendgroup": kind,
            "showlegend": kind not in shown,
            "xaxis": f"x{n}",
            "yaxis": f"y{n}",
            "y": [round(frame.rows[bar.rank], 2) for bar in bars],
            "base": [round(bar.start_s, 5) for bar in bars],
            "x": [round(bar.end_s - bar.start_s, 5) for bar in bars],
            "width": 0.8,
            "marker": {"color": colour, "line": {"color": "--c-card", "width": edge}},
            "customdata": [_hover(bar, name, frame) for bar in bars],
            "hovertemplate": "%{customdata}<extra></extra>",
        }
        if kind in ("forward", "backward"):
            trace["text"] = [_number(bar, waits[bar.rank], frame) for bar in bars]
            trace |= {"textposition": "inside", "insidetextanchor": "start", "textangle": 0, "textfont": {"size": 9, "color": "--c-onbar"}}
        traces.append(trace)
    return traces


def _hover(bar: Bar, name: str, frame: _Frame) -> str:
    return f"{frame.names[bar.rank]}<br>{name}, {escape(bar.label)}<br>{seconds(bar.end_s - bar.start_s)} from {bar.start_s:.3f} s"


def _number(chunk: Bar, waits_s: list[float], frame: _Frame) -> str:
    """The micro-batch's number, unless the chunk is too narrow or waiting is drawn over it."""
    first = bisect_left(waits_s, chunk.start_s)
    covered = first < len(waits_s) and waits_s[first] < chunk.end_s
    return "" if covered or chunk.end_s - chunk.start_s < NUMBERED * frame.span_s else chunk.label.split()[-1]
