"""The charts of a trace's page: a map of the workers, and one step's timeline measured and ideal on one scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lurcher.ingest.op_trace import TraceOp
from lurcher.localize.whatif import TraceAnalysis
from lurcher.report.chart import MAX_RANKS, Figure, axis, base_layout, legend, numbers, upright
from lurcher.report.gantt import BOTTOM_PX, GAP_PX, KINDS, NUMBERED, ROW_PX, SLIVER
from lurcher.report.trace_spans import IN_BACKGROUND, KIND_OF, StepSpans, op_words
from lurcher.report.words import seconds

MOST_LABELLED = 128
"""Up to so many cells of the map carry their figure."""
MOST_ROWS = 64
"""Replicas that the map shows; of more, those with the largest S_w."""
Worker = tuple[int, int]


def worker_map(analysis: TraceAnalysis, slow: Sequence[Worker]) -> Figure:
    """S_w of every worker: a row per stage, a column per replica; slow workers are framed."""
    found = analysis.what_if.ratios(analysis.what_if.only_worker_s)  # (D, P)
    shown = np.sort(np.argsort(-found.max(axis=1), kind="stable")[:MOST_ROWS])
    values = found[shown].T
    hover = [[f"dp{dp}/stage{stage}<br>with it alone as measured: {found[dp, stage]:.3f}×" for dp in shown] for stage in range(found.shape[1])]
    data: Figure = {
        "type": "heatmap",
        "x": [str(dp) for dp in shown],
        "y": [str(stage) for stage in range(found.shape[1])],
        "z": [numbers(row) for row in values],
        "zmin": 1.0,
        "zmax": max(1.2, float(values.max())),
        "colorscale": [[0, "--c-card"], [1, "--c-slow"]],
        "xgap": 2,
        "ygap": 2,
        "customdata": hover,
        "hovertemplate": "%{customdata}<extra></extra>",
        "colorbar": {"thickness": 10, "tickfont": {"color": "--c-soft"}, "outlinewidth": 0},
    }
    if values.size <= MOST_LABELLED:
        data |= {"text": [[f"{value:.2f}" for value in row] for row in values], "texttemplate": "%{text}"}
    places = {int(dp): place for place, dp in enumerate(shown)}
    frames = [_frame(places[dp], stage) for dp, stage in slow if dp in places]
    layout = base_layout(
        110 + 34 * found.shape[1],
        xaxis=axis("replica (dp rank)", type="category", showgrid=False),
        yaxis=axis("stage", type="category", autorange="reversed", showgrid=False),
        shapes=frames,
    )
    return {"data": [data], "layout": layout}


def _frame(column: int, row: int) -> Figure:
    place = {"x0": column - 0.5, "x1": column + 0.5, "y0": row - 0.5, "y1": row + 0.5}
    return {"type": "rect", "line": {"color": "--c-text", "width": 2.5}, **place}


def shown_workers(analysis: TraceAnalysis, slow: Sequence[Worker]) -> list[Worker]:
    """Workers to draw, as whole replicas: those of slow workers, then the one that costs most and the one that costs least."""
    worst = np.argsort(-analysis.what_if.only_dp_s.mean(axis=1), kind="stable").tolist()
    order = dict.fromkeys([*(dp for dp, _ in slow), *worst[:1], *worst[-1:], *worst])
    replicas = sorted(list(order)[: max(1, MAX_RANKS // analysis.num_stages)])
    return [(dp, stage) for dp in replicas for stage in range(analysis.num_stages)][: 2 * MAX_RANKS]


def step_figure(analysis: TraceAnalysis, panels: Sequence[StepSpans], workers: Sequence[Worker], slow: Sequence[Worker]) -> Figure:
    """The panels above each other on one time scale: a shorter picture is a faster step."""
    span_s = 1.01 * max(one.length_s for one in panels)
    body_px = ROW_PX * len(workers)
    area_px = len(panels) * (body_px + GAP_PX)
    layout = base_layout(
        round(area_px + BOTTOM_PX),
        barmode="overlay",
        bargap=0,
        margin={"l": 96, "r": 12, "t": 0, "b": BOTTOM_PX},
        legend=legend(-50 / area_px),
        uniformtext={"minsize": 8, "mode": "hide"},
        annotations=[],
        shapes=[],
    )
    names = [f"<b>▶ dp{dp}/stage{stage}</b>" if (dp, stage) in slow else f"dp{dp}/stage{stage}" for dp, stage in workers]
    data: list[Figure] = []
    for i, one in enumerate(panels):
        n = "" if i == 0 else str(i + 1)
        top = 1 - (i * (body_px + GAP_PX) + GAP_PX) / area_px
        last = i == len(panels) - 1
        layout[f"xaxis{n}"] = axis("seconds since the step began" if last else "", anchor=f"y{n}", range=[0, span_s], showticklabels=last)
        layout[f"xaxis{n}"] |= {"matches": "x"} if i else {}
        layout[f"yaxis{n}"] = axis(
            "",
            domain=[max(0.0, top - body_px / area_px), top],
            anchor=f"x{n}",
            range=[len(workers) - 0.5, -0.5],
            tickvals=list(range(len(workers))),
            ticktext=names,
            showgrid=False,
            fixedrange=True,
        )
        title = {
            "text": f"<b>Step {one.step} {one.title}</b>, {seconds(one.length_s)}",
            "showarrow": False,
            "font": {"color": "--c-text", "size": 13},
        }
        layout["annotations"].append({**title, "xref": "paper", "yref": "paper", "x": 0, "y": top, "xanchor": "left", "yanchor": "bottom"})
        layout["shapes"].append(upright(one.length_s, 0, 1, f"y{n} domain", "--c-text", xref=f"x{n}"))
        data += _bars(analysis, one, workers, n, span_s, {trace["legendgroup"] for trace in data})
    return {"data": data, "layout": layout}


def _bars(analysis: TraceAnalysis, one: StepSpans, workers: Sequence[Worker], n: str, span_s: float, known: set[str]) -> list[Figure]:
    """A trace per kind: computation, collectives with the waiting before them, the rest."""
    table = analysis.graph.table
    rows: dict[str, list[tuple[int, float, float, str, str]]] = {kind: [] for kind in KINDS}
    for row, (dp, stage) in enumerate(workers):
        for op in np.flatnonzero((table.stage == stage) & ~np.isin(table.op, IN_BACKGROUND)).tolist():
            begin, end, own = float(one.begin_s[op, dp]), float(one.end_s[op, dp]), float(one.own_s[op, dp])
            name, label = op_words(analysis, op), str(table.microbatch[op])
            if (kind := KIND_OF.get(TraceOp(int(table.op[op])))) is not None:
                rows[kind].append((row, begin, end, name, label if end - begin >= NUMBERED * span_s and kind != "other" else ""))
            else:
                rows["wait"].append((row, begin, end - own, f"{name}: waiting", ""))
                rows["transfer"].append((row, end - own, end, name, ""))
    traces = []
    for kind, bars in rows.items():
        kept = [bar for bar in bars if bar[2] - bar[1] >= SLIVER * span_s]
        if not kept:
            continue
        text, colour = KINDS[kind]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": text,
                "legendgroup": kind,
                "showlegend": kind not in known,
                "xaxis": f"x{n}",
                "yaxis": f"y{n}",
                "y": [bar[0] for bar in kept],
                "base": [round(bar[1], 5) for bar in kept],
                "x": [round(bar[2] - bar[1], 5) for bar in kept],
                "width": 0.8,
                "marker": {"color": colour, "line": {"color": "--c-card", "width": 0.6 if kind in ("forward", "backward") else 0}},
                "text": [bar[4] for bar in kept],
                "textposition": "inside",
                "insidetextanchor": "start",
                "textangle": 0,
                "textfont": {"size": 9, "color": "--c-onbar"},
                "customdata": [
                    f"dp{workers[bar[0]][0]}/stage{workers[bar[0]][1]}<br>{bar[3]}, {seconds(bar[2] - bar[1])} from {bar[1]:.3f} s" for bar in kept
                ],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    return traces
